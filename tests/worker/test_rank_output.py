"""Library warnings: at most once on the terminal, with their rank, and all of them in the ranks' logs."""

from pathlib import Path

import pytest
from tests.fixtures.processes.command import CommandResult
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.torchrun import python, torchrun

from paceline.launchers.local import LocalLauncher

WARNS = ("--task", "tests.fixtures.tasks.user_tasks:WarningTask", "--steps", "2", "--run-dir", "run")
SAID = ("FutureWarning: this layer is deprecated", "UserWarning: An output with one or more", "a slow socket")
NO_WARNING = "a line that is no warning"


def _logs(folder: Path, who: str) -> str:
    return (folder / "run" / "logs" / f"{who}.log").read_text()


def _assert_in_both_logs(folder: Path) -> None:
    for who in ("worker-0", "worker-1"):
        for text in SAID:
            assert text in _logs(folder, who), (who, text)


def test_under_torchrun_the_terminal_has_each_warning_once_and_each_log_its_own(tmp_path: Path) -> None:
    result = torchrun(*WARNS, "--mode", "ssgd", folder=tmp_path)
    assert result.code == 0, result.err
    _assert_in_both_logs(tmp_path)
    for text in SAID:
        (line,) = (line for line in result.err.splitlines() if text in line)
        assert line.startswith("[rank 0] ")
    # What is no warning may be the cause of a failure: every rank's stays where it was.
    assert result.err.count(NO_WARNING) >= 2
    assert NO_WARNING not in _logs(tmp_path, "worker-1")


def test_paceline_workers_warn_in_their_logs(launcher: LocalLauncher, tmp_path: Path) -> None:
    result = warm_paceline(launcher, "train", *WARNS, "--num-workers", "2", folder=tmp_path)
    assert result.code == 0, result.err
    _assert_in_both_logs(tmp_path)
    assert not [text for text in SAID if text in result.err + result.out]


WITHOUT_END = "an error without an end of line"
SCRIPT = """
import os, sys, warnings
from pathlib import Path
from paceline.worker.rank_output import RankOutput
output = RankOutput(int(sys.argv[1]))
warnings.warn("before the log is known")
os.write(2, b"I0000 00:00:1763328291.1 1 cpu.cc:1] banner\\n")
os.write(2, b"2026-11-16 21:24:51.1: W tensorflow/x.cc:1] old\\n")
os.write(2, b"lib.py:3: UserWarning: of a child\\n  its_source_line()\\nan error without an end of line")
if sys.argv[2] != "-":
    output.log_to(Path(sys.argv[2]) / "logs" / "rank.log")
print("a print", file=sys.stderr)
if sys.argv[3] == "close":
    output.close()
os._exit(3)  # as an abort would: nothing in this process is flushed
"""
HELD = ("before the log is known", "banner", "tensorflow/x.cc", "of a child", "its_source_line()")


def _run_rank(rank: int, run_dir: str, how: str, folder: Path) -> CommandResult:
    result = python("-c", SCRIPT, str(rank), run_dir, how, folder=folder)
    assert result.code == 3, result.err
    assert "a print" in result.err
    assert WITHOUT_END in result.err
    return result


@pytest.mark.parametrize("how", ["close", "abort"])
def test_warnings_before_the_log_is_known_are_kept_for_it(how: str, tmp_path: Path) -> None:
    result = _run_rank(1, str(tmp_path), how, tmp_path)
    log = (tmp_path / "logs" / "rank.log").read_text()
    assert all(text in log for text in HELD)
    assert not [text for text in HELD if text in result.err]


@pytest.mark.parametrize("run_dir", ["-", "/absent/run"])
def test_without_a_log_nothing_is_lost(run_dir: str, tmp_path: Path) -> None:
    result = _run_rank(1, run_dir, "close", tmp_path)
    assert all(result.err.count(text) == 1 for text in HELD)
    assert result.err.count("[rank 1] ") >= 4
