"""Is a person asked before something is killed, and a script never?"""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

KILL = [sys.executable, "-m", "paceline", "workers", "kill", "runs/none", "worker-0"]


@pytest.mark.parametrize(
    ("more", "answer", "code", "said"),
    [
        ([], "n\n", 130, "kill worker-0 of runs/none? [y/N]: n"),
        ([], "y\n", 5, "runs/none"),  # there is no such run
        (["--yes"], "", 5, "runs/none"),
    ],
)
def test_at_a_terminal_it_is_asked_once(
    tmp_path: Path, more: list[str], answer: str, code: int, said: str
) -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen([*KILL, *more], cwd=tmp_path, stdin=theirs, stderr=theirs)
        os.write(ours, answer.encode())
        assert process.wait(120) == code
        seen = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert said in seen
    assert ("[y/N]" in seen) == (not more)


def test_a_script_is_not_asked(tmp_path: Path) -> None:
    done = subprocess.run(
        KILL, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert "[y/N]" not in done.stderr


def test_where_nobody_can_answer_it_is_refused_and_said_how_to_say_yes(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [*KILL, "--no-input"]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stderr=theirs)
        assert process.wait(120) == 3
        seen = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "it would be asked: kill worker-0 of runs/none?" in seen
    assert "add --yes" in seen
