"""An interrupted search knows finished trials, open trials and the best so far."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.searches import Here, laid_out
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, FolderInUseError, PacelineError
from paceline.plan.codec import dumps
from paceline.tune.experiment import (
    Record,
    Status,
    Trial,
    TrialEvaluation,
    TuneFolder,
    Tuning,
    best_of,
    stopped_ahead,
    unfinished_trials,
)
from paceline.tune.runner import SearchRecorder, apply_report, rung_history
from paceline.tune.trial import WORST, resume_point

OVER = (Status.FINISHED, Status.STOPPED, Status.FAILED)


@pytest.fixture
def tuning() -> Tuning:
    return laid_out(Here(steps="40"), "lr=log:1e-3..1", "mode=ssgd,localsgd", trials=4)[0]


@pytest.fixture
def folder(tmp_path: Path, tuning: Tuning) -> TuneFolder:
    tune_folder = TuneFolder(tmp_path / "search")
    tune_folder.check_is_free()
    tune_folder.begin(tuning)
    return tune_folder


def over(number: int, value: float | None, status: Status = Status.FINISHED) -> Record:
    return Record(number=number, status=status, value=value, metric="test_loss", seconds=1.5)


def report(step: int, value: float | None = None, **more: object) -> dict[str, object]:
    results: dict[str, object] = {"step": step, "steps": 40, **more}
    if value is not None:
        results |= {"metric": "test_loss", "value": value, "has_value": True, "rung": step // 4}
    return results


def test_what_was_decided_comes_back_whole(folder: TuneFolder, tuning: Tuning, wording: Wording) -> None:
    assert folder.tuning() == tuning
    with wording.raises(ConfigError):
        folder.check_is_free()
    with wording.raises(ConfigError):
        folder.begin(replace(tuning, lower_is_better=False))  # two have begun at once
    assert folder.tuning() == tuning


def test_trials_that_are_over_are_not_repeated_and_all_others_are_made(
    folder: TuneFolder, tuning: Tuning
) -> None:
    assert unfinished_trials(tuning, folder.records(tuning)) == list(tuning.trials)
    for number, status in enumerate(OVER, start=1):
        folder.write(over(number, 0.5, status))
    for status in set(Status) - set(OVER):
        folder.write(over(4, 0.5, status))
        assert [trial.number for trial in unfinished_trials(tuning, folder.records(tuning))] == [4], status


def test_the_best_is_of_those_that_came_to_their_end(folder: TuneFolder, tuning: Tuning) -> None:
    records = {
        1: over(1, 0.1, Status.STOPPED),
        2: over(2, 0.4),
        3: over(3, 0.3),
        4: over(4, None),
    }
    assert best_of(tuning, records) is tuning.trials[2]
    assert best_of(replace(tuning, lower_is_better=False), records) is tuning.trials[1]
    assert best_of(tuning, {1: records[1], 4: records[4]}) is None
    assert stopped_ahead(tuning, records, tuning.trials[2]) is tuning.trials[0]
    assert stopped_ahead(replace(tuning, lower_is_better=False), records, tuning.trials[1]) is None
    assert stopped_ahead(tuning, {3: records[3]}, tuning.trials[2]) is None
    assert folder.conclude(tuning, {1: records[1]}) is None
    assert not (folder.path / "best.yaml").exists()
    folder.conclude(tuning, records)
    text = (folder.path / "best.yaml").read_text()
    assert text.startswith("# Trial 3: ")
    assert text.endswith(tuning.trials[2].file)
    lines = (folder.path / "trials.csv").read_text().splitlines()
    assert lines[0] == "trial,status,lr,mode,metric,value,evaluations,step,seconds"
    assert lines[1].startswith(f"1,stopped,{tuning.trials[0].settings['lr']},")
    assert len(lines) == 5


def test_a_damaged_or_missing_folder_is_reported(
    folder: TuneFolder, tuning: Tuning, tmp_path: Path, wording: Wording
) -> None:
    with wording.raises(PacelineError):
        TuneFolder(tmp_path / "nowhere").tuning()
    folder.write(over(1, 0.5))
    (folder.path / "trials" / "001.json").write_text("{")
    with wording.raises(PacelineError):
        folder.records(tuning)
    (folder.path / "tune.json").write_text("{}")
    with wording.raises(PacelineError):
        folder.tuning()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with wording.raises(ConfigError):
        TuneFolder(tmp_path / "other").check_is_free()


def test_two_at_once_do_not_work_on_one_search(folder: TuneFolder) -> None:
    refused: list[FolderInUseError] = []

    def work() -> None:
        try:
            with folder.locked():
                pass
        except FolderInUseError as error:
            refused.append(error)

    with folder.locked():
        another = threading.Thread(target=work)
        another.start()
        another.join()
    assert len(refused) == 1
    work()
    assert len(refused) == 1


def test_evaluations_are_kept_and_one_that_goes_back_takes_back_what_came_later() -> None:
    record = Record(number=1, status=Status.RUNNING)
    for step in (4, 8, 12):
        record = apply_report(record, report(step, 1 / step))
    record = apply_report(record, report(14))
    assert [(evaluation.step, evaluation.rung) for evaluation in record.evaluations] == [
        (4, 1),
        (8, 2),
        (12, 3),
    ]
    assert (record.step, record.value) == (14, 1 / 12)
    again = apply_report(record, report(8, 0.5))
    assert [(evaluation.step, evaluation.value) for evaluation in again.evaluations] == [(4, 0.25), (8, 0.5)]
    nothing = apply_report(record, {**report(16, 0.0), "has_value": False})
    assert nothing.evaluations[-1].value is None


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("finished", Status.FINISHED),
        ("failed", Status.FAILED),
        ("unmeasured", Status.FAILED),
        ("interrupted", Status.INTERRUPTED),
        (None, Status.RUNNING),
    ],
)
def test_a_report_shows_the_state_of_a_trial(state: str | None, status: Status) -> None:
    record = apply_report(Record(number=1, status=Status.RUNNING), report(40, 0.1, state=state, seconds=2.0))
    assert (record.status, record.seconds, record.value) == (status, 2.0, 0.1)


def test_asha_receives_the_results_of_earlier_sessions(tuning: Tuning) -> None:
    seen = (TrialEvaluation(step=4, rung=1, value=0.5), TrialEvaluation(step=8, rung=2, value=None))
    records = {
        1: replace(over(1, 0.5, Status.STOPPED), evaluations=seen),
        2: replace(over(2, 0.5), evaluations=seen),
        3: replace(over(3, 0.5, Status.FAILED), evaluations=seen),
        4: over(4, 0.5),
    }
    assert rung_history(tuning, records) == (((1, 0.5), (2, WORST)),) * 2
    assert rung_history(replace(tuning, lower_is_better=False), records)[0] == ((1, -0.5), (2, WORST))


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.RUNNING, Status.LOST])
def test_a_resumed_trial_does_not_compete_with_its_own_past(tuning: Tuning, status: Status) -> None:
    seen = (TrialEvaluation(step=4, rung=1, value=0.5),)
    assert rung_history(tuning, {1: replace(over(1, 0.5, status), evaluations=seen)}) == ()


def test_asha_does_not_receive_trials_that_are_evaluated_at_their_end_only(tuning: Tuning) -> None:
    blind = replace(tuning.trials[0], plan=replace(tuning.trials[0].plan, evaluation=None))
    mixed = replace(tuning, trials=(blind, *tuning.trials[1:]))
    at_the_end = replace(over(1, 0.1), evaluations=(TrialEvaluation(step=40, rung=1, value=0.1),))
    on_the_way = replace(over(2, 0.5), evaluations=(TrialEvaluation(step=4, rung=1, value=0.5),))
    assert rung_history(mixed, {1: at_the_end, 2: on_the_way}) == (((1, 0.5),),)


class Watching:
    def __init__(self) -> None:
        self.ends: list[tuple[int, Status, str]] = []

    def began(self, trial: Trial, over: int) -> None: ...

    def evaluated(self, trial: Trial, record: Record) -> None: ...

    def progress(self, trial: Trial, step: int) -> None: ...

    def ended(self, trial: Trial, record: Record) -> None:
        self.ends.append((trial.number, record.status, record.why))

    def note(self, text: str) -> None: ...


def test_a_trial_whose_process_never_started_is_lost_and_the_search_continues(
    folder: TuneFolder, tuning: Tuning
) -> None:
    watching = Watching()
    book = SearchRecorder(tuning, folder, {}, watching)
    book.lost(2, "no node would have it")
    assert watching.ends == [(2, Status.LOST, "no node would have it")]
    assert folder.records(tuning)[2].status is Status.LOST
    assert tuning.trials[1] in unfinished_trials(tuning, folder.records(tuning)), (
        "it is tried again by --resume"
    )


def test_a_run_of_another_plan_or_without_a_checkpoint_is_started_again(
    tuning: Tuning, tmp_path: Path
) -> None:
    plan = tuning.trials[0].plan
    assert resume_point(plan, tmp_path) is None
    (tmp_path / "plan.json").write_text(dumps(plan))
    assert resume_point(plan, tmp_path) is None, "it has no checkpoint"
    (tmp_path / "plan.json").write_text(dumps(tuning.trials[1].plan))
    assert resume_point(plan, tmp_path) is None
