"""Library warnings: at most once on the terminal, with their rank, and all of them in the ranks' logs."""

from pathlib import Path

import pytest
from tests.fixtures.command import Done
from tests.fixtures.torchrun import python, torchrun
from tests.fixtures.warm_command import warm_paceline

from paceline.launchers.local import LocalLauncher

WARNS = ("--task", "tests.fixtures.tasks:WarningTask", "--steps", "2", "--run-dir", "run")
SAID = ("FutureWarning: this layer is deprecated", "UserWarning: An output with one or more", "a slow socket")
NO_WARNING = "a line that is no warning"


def _logs(folder: Path, who: str) -> str:
    return (folder / "run" / "logs" / f"{who}.log").read_text()


def _assert_in_both_logs(folder: Path) -> None:
    for who in ("worker-0", "worker-1"):
        for said in SAID:
            assert said in _logs(folder, who), (who, said)


def test_under_torchrun_the_terminal_has_each_warning_once_and_each_log_its_own(tmp_path: Path) -> None:
    done = torchrun(*WARNS, "--mode", "ssgd", folder=tmp_path)
    assert done.code == 0, done.err
    _assert_in_both_logs(tmp_path)
    for said in SAID:
        (line,) = (line for line in done.err.splitlines() if said in line)
        assert line.startswith("[rank 0] ")
    # What is no warning may be the cause of a failure: every rank's stays where it was.
    assert done.err.count(NO_WARNING) >= 2
    assert NO_WARNING not in _logs(tmp_path, "worker-1")


def test_workers_of_ours_warn_in_their_logs(launcher: LocalLauncher, tmp_path: Path) -> None:
    done = warm_paceline(launcher, "train", *WARNS, "--num-workers", "2", folder=tmp_path)
    assert done.code == 0, done.err
    _assert_in_both_logs(tmp_path)
    assert not [said for said in SAID if said in done.err + done.out]


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


def _ran(rank: int, run_dir: str, how: str, folder: Path) -> Done:
    done = python("-c", SCRIPT, str(rank), run_dir, how, folder=folder)
    assert done.code == 3, done.err
    assert "a print" in done.err
    assert "an error without an end of line" in done.err
    return done


@pytest.mark.parametrize("how", ["close", "abort"])
def test_warnings_before_the_log_is_known_are_kept_for_it(how: str, tmp_path: Path) -> None:
    done = _ran(1, str(tmp_path), how, tmp_path)
    log = (tmp_path / "logs" / "rank.log").read_text()
    assert all(said in log for said in HELD)
    assert not [said for said in HELD if said in done.err]


@pytest.mark.parametrize("run_dir", ["-", "/absent/run"])
def test_without_a_log_nothing_is_lost(run_dir: str, tmp_path: Path) -> None:
    done = _ran(1, run_dir, "close", tmp_path)
    assert all(done.err.count(said) == 1 for said in HELD)
    assert done.err.count("[rank 1] ") >= 4
