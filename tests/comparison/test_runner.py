"""A comparison is run as it was laid out, and resumes where it was interrupted; with real runs."""

import json
import threading
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.comparison.layout import CompareRequest
from paceline.comparison.report.runs import report
from paceline.comparison.runner import StoppedError, UpcomingRun, compare
from paceline.config.train_config import TrainConfig
from paceline.core.disk import LOCK_NAME, exclusive
from paceline.core.errors import ConfigError, FolderInUseError, PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.training.progress import SilentWatcher, Watcher

CONFIG = TrainConfig(task="xor", steps=6, batch_size=8, launcher="virtual")
REQUEST = CompareRequest(config=CONFIG, modes=("ssgd", "asgd"), worker_counts=(2,), repeats=2)
EVERY = 6  # three contenders, twice


class StartRecorder:
    """Remembers what was started."""

    def __init__(self, stop_before: int | None = None) -> None:
        self.names: list[str] = []
        self._stop_before = stop_before

    def __call__(self, coming: UpcomingRun) -> Watcher:
        if coming.number == self._stop_before:
            raise StoppedError("SIGINT")
        self.names.append(coming.turn.name)
        return SilentWatcher()


def test_an_interrupted_comparison_resumes_and_repeats_nothing(
    tmp_path: Path, launcher: LocalLauncher
) -> None:
    first, second, third = StartRecorder(stop_before=4), StartRecorder(), StartRecorder()
    with pytest.raises(StoppedError):
        compare(REQUEST, tmp_path, first, launcher=launcher)
    assert not (tmp_path / "comparison.json").exists()
    comparison = compare(REQUEST, tmp_path, second, launcher=launcher)
    assert len(first.names) == 3
    assert sorted([*first.names, *second.names]) == sorted(comparison.order)
    assert len(comparison.order) == EVERY
    again = compare(REQUEST, tmp_path, third, launcher=launcher)
    assert third.names == []
    assert again == comparison


def test_a_comparison_in_use_is_refused_and_stays_as_it_is(tmp_path: Path, launcher: LocalLauncher) -> None:
    record = StartRecorder()
    refused: list[FolderInUseError] = []

    def work() -> None:
        try:
            compare(REQUEST, tmp_path, record, launcher=launcher)
        except FolderInUseError as error:
            refused.append(error)

    with exclusive(tmp_path):
        other = threading.Thread(target=work)
        other.start()
        other.join()
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
    assert len(refused) == 1
    assert record.names == []


def test_half_a_run_is_made_again(tmp_path: Path, launcher: LocalLauncher) -> None:
    compare(REQUEST, tmp_path, StartRecorder(), launcher=launcher)
    result = tmp_path / "runs" / "ssgd-2-1" / "result.json"
    half = json.loads(result.read_text()) | {"stopped_early": True}
    result.write_text(json.dumps(half))
    (tmp_path / "runs" / "asgd-2-2" / "result.json").unlink()
    received = StartRecorder()
    compare(REQUEST, tmp_path, received, launcher=launcher)
    assert sorted(received.names) == ["asgd-2-2", "ssgd-2-1"]


def test_a_changed_plan_is_noticed_and_more_repeats_are_welcome(
    tmp_path: Path, launcher: LocalLauncher, wording: Wording
) -> None:
    compare(REQUEST, tmp_path, StartRecorder(), launcher=launcher)
    other = CompareRequest(
        config=TrainConfig(task="xor", steps=7, batch_size=8, launcher="virtual"), modes=("ssgd",), repeats=2
    )
    with wording.raises(ConfigError):
        compare(other, tmp_path, StartRecorder(), launcher=launcher)
    more, received = CompareRequest(config=CONFIG, modes=("ssgd", "asgd"), repeats=3), StartRecorder()
    assert compare(more, tmp_path, received, launcher=launcher).repeats == 3
    assert len(received.names) == 3


def test_a_folder_with_other_things_in_it_is_left_alone(
    tmp_path: Path, launcher: LocalLauncher, wording: Wording
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with wording.raises(ConfigError):
        compare(REQUEST, tmp_path, StartRecorder(), launcher=launcher)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_all_modes_trained_on_the_same_samples_and_all_files_are_there(
    tmp_path: Path, launcher: LocalLauncher
) -> None:
    comparison = compare(REQUEST, tmp_path, StartRecorder(), launcher=launcher)
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json")]
    assert {result["samples"] for result in results} == {comparison.samples} == {6 * 8 * 2}
    ssgd, base = comparison.cells["ssgd-2"], comparison.cells["single"]
    assert ssgd.quality_all == pytest.approx(base.quality_all)  # the same updates, shared
    assert ssgd.speedup.value == pytest.approx(2.0)  # in virtual time nothing is lost
    for name in ("comparison.json", "comparison.csv", "report.html", "baseline_results.json"):
        assert (tmp_path / name).stat().st_size > 0
    assert json.loads((tmp_path / "asgd_results_2workers.json").read_text())["num_workers"] == 2


def test_finished_runs_are_reported_alone_side_by_side_and_as_a_comparison(
    tmp_path: Path, launcher: LocalLauncher, wording: Wording
) -> None:
    folder = tmp_path / "compared"
    compare(REQUEST, folder, StartRecorder(), launcher=launcher)
    runs = [folder / "runs" / name for name in ("asgd-2-1", "ssgd-2-1")]
    report(runs[:1], tmp_path / "one")
    alone = (tmp_path / "one" / "report.html").read_text()
    assert "Events of asgd-2-1" in alone
    assert "worker 1" in alone  # its phases, by worker
    report(runs, tmp_path / "two")
    assert " xor on 96 samples" in (tmp_path / "two" / "report.html").read_text()
    report([folder], tmp_path / "again")
    made, again = ((place / "report.html").read_text() for place in (folder, tmp_path / "again"))
    assert made == again
    with wording.raises(PacelineError):
        report([folder, *runs], tmp_path / "mixed")
    with wording.raises(PacelineError):
        report([runs[0], runs[0]], tmp_path / "twice")
    (runs[0] / "result.json").unlink()
    with wording.raises(PacelineError):
        report(runs[:1], tmp_path / "half")
