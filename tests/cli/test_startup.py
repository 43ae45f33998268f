"""Startup time of `paceline`, in a process of its own, since imports dominate it."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

HEAVY = ("torch", "numpy", "rich", "yaml", "sklearn", "grpc", "google.protobuf", "cryptography", "asyncio")
PROBE = """
import sys
from paceline.cli.main import run
from paceline.training.session import Session
code = run(sys.argv[1:], Session())
print(code, [m for m in {heavy} if m in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        [],
        ["train", "--help"],
        ["compare", "--help"],
        ["report", "--help"],
        ["coordinator", "--help"],
        ["lighthouse", "--help"],
        ["job", "render", "--help"],
        ["plan"],
        ["plan", "--steps", "0"],
    ],
)
def test_neither_torch_nor_anything_heavy_is_imported(args: list[str]) -> None:
    command = [sys.executable, "-c", PROBE.format(heavy=HEAVY), *args]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    code = "3" if "0" in args else "0"
    assert result.stderr.splitlines()[-1] == f"{code} []"


def test_the_list_of_commands_needs_no_table_of_settings() -> None:
    tables = (
        "paceline.config",
        "paceline.plan",
        "paceline.sync",
        "paceline.core.error_catalog",
        "paceline.cli.examples",
    )
    result = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=tables), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr.splitlines()[-1] == "0 []"


def test_help_takes_little_more_processor_time_than_what_reads_the_command_line() -> None:
    """150 ms where Python imports click in 50: machines differ, and so does one that is busy."""
    ours, least = [], []
    for _ in range(5):
        ours.append(_cpu_s([sys.executable, "-m", "paceline", "--help"]))
        least.append(_cpu_s([sys.executable, "-c", "import click"]))
    assert min(ours) < 3 * min(least)


def test_python_dash_m_is_the_command_and_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "train", "-n", "--json"]
    mistakes = ["--mode", "ssp", "--staleness", "-1", "--num-workers", "0", "--task", "nope"]
    result = subprocess.run([*command, *mistakes], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 3
    assert len(json.loads(result.stdout)["error"]["problems"]) == 3
    assert result.stderr == ""


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m paceline train --dry-run -q | head -c 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("0\n")
    assert result.stderr == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_exit_code_and_no_traceback(
    tmp_path: Path, number: signal.Signals, code: int, wording: Wording
) -> None:
    config = tmp_path / "config.yaml"
    os.mkfifo(config)  # the command waits for its config, so the signal finds it at work
    command = [sys.executable, "-m", "paceline", "train", "--dry-run", "-c", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with config.open("w"):  # opens once the other side has opened it too
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == code
    wording(err)
    assert [line.split()[0] for line in err.splitlines()[1:]] == ["why:", "fix:", "more:"]


def _cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
