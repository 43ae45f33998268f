"""Shell completion, requested as a shell does, and in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, ShellComplete

from paceline.cli.main import COMPLETION_VARIABLE, cli, run
from paceline.training.session import Session

HEAVY = ("torch", "numpy", "rich", "yaml", "grpc", "google.protobuf", "asyncio", "ray")
PROBE = """
import sys
from paceline.cli.main import answer
answer("bash_complete")
print([m for m in {heavy} if m in sys.modules], file=sys.stderr)
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("xor-ssgd", "xor-asgd"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "plan.json").write_text('{"num_workers": 3}')
    (tmp_path / "runs" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def next_words(*words: str) -> list[str]:
    """What may follow; the last word is begun."""
    made: ShellComplete = BashComplete(cli, {}, "paceline", COMPLETION_VARIABLE)
    return [item.value for item in made.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], ["train"]),
        (["coordinator", "st"], ["start", "status", "step-down"]),
        (["train", "--mode", "local"], ["localsgd"]),
        (["train", "--device", "c"], ["cpu", "cuda"]),
        (["train", "--set", "stale"], ["staleness=", "staleness_range="]),
        (["train", "--set", "mode=ss"], ["mode=ssgd", "mode=ssp"]),
        (["status", "runs/xor-s"], ["runs/xor-ssgd"]),
        (["status", ""], ["runs/xor-asgd", "runs/xor-ssgd"]),
        (["workers", "kill", "runs/xor-ssgd", "w"], ["worker-0", "worker-1", "worker-2"]),
        (["workers", "kill", "runs/notes", "w"], []),
        (["lab", "run", "kill-l"], ["kill-leader"]),
        (["explain", "E20"], [f"E20{n}" for n in range(10)]),
        (["config", "keys", "clip"], ["clip_norm"]),
    ],
)
@pytest.mark.usefixtures("runs")
def test_values_are_completed(words: list[str], expected: list[str]) -> None:
    assert next_words(*words) == expected


def test_a_flag_is_completed_everywhere() -> None:
    assert "--num-workers" in next_words("train", "--num")
    assert "--json" in next_words("coordinator", "status", "--js")


@pytest.mark.usefixtures("runs")
def test_asking_imports_nothing_heavy() -> None:
    requested = {**os.environ, "COMP_WORDS": "paceline train --mode l", "COMP_CWORD": "3"}
    command = [sys.executable, "-c", PROBE.format(heavy=HEAVY)]
    result = subprocess.run(command, env=requested, capture_output=True, text=True, check=True)
    assert result.stdout == "plain,localsgd\n"
    assert result.stderr == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_can_be_read_by_its_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell], Session()) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_a_real_bash_completes_the_name_of_a_run(runs: Path, tmp_path: Path) -> None:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "paceline").write_text(f'#!/bin/sh\nexec {sys.executable} -m paceline "$@"\n')
    (binaries / "paceline").chmod(0o755)
    script = """
    eval "$(paceline completion bash)"
    COMP_WORDS=(paceline status runs/xor-s); COMP_CWORD=2
    $(complete -p paceline | sed -E 's/.*-F ([^ ]+).*/\\1/') paceline
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    path = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euc", script], env=path, cwd=runs, capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.returncode) == ("runs/xor-ssgd\n", 0), result.stderr


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"], Session()) == 2
    err = capsys.readouterr().err
    assert all(f"'{shell}'" in err for shell in ("bash", "zsh", "fish"))
