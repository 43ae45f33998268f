"""Commands end in time with all their child processes, and a build stops when the user interrupts it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.containers.engine import EngineHere
from tests.fixtures.processes.command import ROOT
from tests.fixtures.waiting import descendants, is_running, kill_all, until, until_gone

from paceline.core.errors import NotReadyError
from paceline.images.build.engine import run_command, stream


def test_lines_come_as_they_are_written() -> None:
    lines: list[str] = []
    script = "echo one; echo two >&2; exit 3"
    command_result = stream(["sh", "-c", script], timeout_s=60, on_line=lines.append)
    assert sorted(lines) == ["one", "two"]
    assert (command_result.code, command_result.is_well) == (3, False)


def test_what_is_too_slow_ends_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sh -c 'echo $$ > {pids}; exec sleep 600'; true"
    command_result = run_command(["sh", "-c", script], timeout_s=1.0)
    assert command_result.was_too_slow
    until_gone([int(pids.read_text())])


def test_input_is_passed_by_stdin() -> None:
    assert run_command(["cat"], stdin="secret").text == "secret"


def test_a_missing_program_is_reported() -> None:
    with pytest.raises(NotReadyError):
        run_command(["/nowhere/engine"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_build_that_is_stopped_leaves_nothing(
    here: EngineHere, project: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    step = f"sleep {600 + number}.{os.getpid()}"  # another worker runs this test at the same time
    (project / "Dockerfile").write_text(f"FROM python:3.11-slim-bookworm\nRUN {step}\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "image", "build", str(project), "-t", "x:1", "--engine", "podman"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(
            lambda: process.poll() is not None or any(line.startswith(step) for line in _command_lines()),
            "it builds",
        )
        processes = [process.pid, *descendants(process.pid)]
        process.send_signal(number)
        _, errors = process.communicate(timeout=150)
    finally:
        kill_all([process.pid, *descendants(process.pid)])
        process.communicate()
    assert process.returncode == code, errors
    until_gone(processes)
    until(lambda: not any(step in line for line in _command_lines()), "the step in the container ended")
    assert here.podman("ps", "--all", "--external", "--quiet").stdout.split() == []
    assert list(temporary.iterdir()) == []
    assert not is_running(process.pid)


def _command_lines() -> list[str]:
    results = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            results.append(entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue  # it ended meanwhile
    return results
