"""Confirmation before something is killed: asked of a person, never of a script."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.fixtures.wording import Wording

KILL = [sys.executable, "-m", "paceline", "workers", "kill", "runs/none", "worker-0"]


@pytest.mark.parametrize(
    ("more", "answer", "code", "text"),
    [
        ([], "n\n", 130, "runs/none? [y/N]: "),
        ([], "y\n", 5, "runs/none"),  # there is no such run
        (["--yes"], "", 5, "runs/none"),
    ],
)
def test_at_a_terminal_the_user_is_prompted_once(
    tmp_path: Path, more: list[str], answer: str, code: int, text: str
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
    assert text in seen
    assert ("[y/N]" in seen) == (not more)


def test_a_script_is_not_prompted(tmp_path: Path) -> None:
    result = subprocess.run(
        KILL, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert result.returncode == 5
    assert "[y/N]" not in result.stderr


def test_without_a_terminal_it_is_refused_with_the_flag_that_confirms(
    tmp_path: Path, wording: Wording
) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [*KILL, "--no-input"]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stderr=theirs)
        assert process.wait(120) == 3
        seen = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "worker-0" in seen
    assert "--yes" in seen
    wording(click.unstyle(seen))
