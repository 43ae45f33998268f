"""Edited times, copied runs and invented kills do not pass a check: the event logs decide."""

import json
import shutil
from pathlib import Path

import pytest
from tests.fixtures.processes.command import CommandResult
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.launchers.local import LocalLauncher
from paceline.learn.evidence import run_facts


def _learn(folder: Path, launcher: LocalLauncher, *args: str) -> CommandResult:
    return warm_paceline(launcher, "learn", *args, "--json", folder=folder)


def _prediction_is_accepted(folder: Path, launcher: LocalLauncher) -> bool:
    (part,) = _learn(folder, launcher, "check", "1").data()["parts"]
    missing = [finding["what"] for finding in part["findings"] if not finding["ok"]]
    return all(what.startswith("question ") for what in missing)


def _train(folder: Path, launcher: LocalLauncher) -> Path:
    args = ("train", "--mode", "single", "--steps", "20", "--pace", "1ms", "--name", "alone", "--quiet")
    done = warm_paceline(launcher, *args, folder=folder)
    assert done.code == 0, done.err
    return folder / "runs" / "alone"


def _set_start(run_dir: Path, later_s: float) -> None:
    """Edit the start time in the header of the log."""
    path = run_dir / "events.jsonl"
    header, _, rest = path.read_text().partition("\n")
    fields = json.loads(header)
    fields["started_unix_s"] += later_s
    path.write_text(json.dumps(fields) + "\n" + rest)


@pytest.fixture
def too_early(tmp_path: Path, launcher: LocalLauncher) -> Path:
    """A run, then its prediction."""
    run_dir = _train(tmp_path, launcher)
    assert _learn(tmp_path, launcher, "predict", "1", "1000").code == 0
    assert not _prediction_is_accepted(tmp_path, launcher)
    return run_dir


def test_a_run_after_its_prediction_is_accepted(tmp_path: Path, launcher: LocalLauncher) -> None:
    _learn(tmp_path, launcher, "predict", "1", "1000")
    _train(tmp_path, launcher)
    assert _prediction_is_accepted(tmp_path, launcher)


@pytest.mark.usefixtures("too_early")
def test_a_prediction_that_was_dated_back_is_not(tmp_path: Path, launcher: LocalLauncher) -> None:
    path = tmp_path / "learn" / "progress.json"
    progress = json.loads(path.read_text())
    progress["parts"]["1"]["prediction"]["at_unix_s"] = 0.0
    progress["parts"]["1"]["begun_unix_s"] = 0.0
    path.write_text(json.dumps(progress))
    assert not _prediction_is_accepted(tmp_path, launcher)
    _learn(tmp_path, launcher, "answer", "1", "2", "c")  # writes the file again
    (part,) = _learn(tmp_path, launcher, "check", "1").data()["parts"]
    assert any("checksum" in finding["what"] for finding in part["findings"] if not finding["ok"])


def test_a_run_with_another_start_time_is_not(
    tmp_path: Path, launcher: LocalLauncher, too_early: Path
) -> None:
    _set_start(too_early, 3600.0)
    assert not _prediction_is_accepted(tmp_path, launcher)


def test_a_copy_of_an_earlier_run_is_not(tmp_path: Path, launcher: LocalLauncher, too_early: Path) -> None:
    copy = too_early.with_name("alone-2")
    shutil.copytree(too_early, copy)
    (copy / "result.json").touch()
    _set_start(copy, 3600.0)
    assert not _prediction_is_accepted(tmp_path, launcher)


def test_a_run_that_was_hidden_during_the_prediction_is_not(tmp_path: Path, launcher: LocalLauncher) -> None:
    run_dir = _train(tmp_path, launcher)
    run_dir.rename(tmp_path / "hidden")
    _learn(tmp_path, launcher, "predict", "1", "1000")
    (tmp_path / "hidden").rename(run_dir)
    _set_start(run_dir, 3600.0)
    assert not _prediction_is_accepted(tmp_path, launcher)


def test_a_result_that_differs_from_the_log_is_recognised(tmp_path: Path, launcher: LocalLauncher) -> None:
    run_dir = _train(tmp_path, launcher)
    assert run_facts(run_dir, tmp_path).is_consistent
    result = json.loads((run_dir / "result.json").read_text())
    (run_dir / "result.json").write_text(json.dumps({**result, "samples_per_s": 1e9}))
    assert not run_facts(run_dir, tmp_path).is_consistent
