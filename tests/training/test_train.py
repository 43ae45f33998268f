"""Progress reports of a run to its watcher, from whichever thread it is started."""

import json
import math
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.fixtures.processes.full_disk import files_of_at_most
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import Watching, real, resumed, virtual_hash
from tests.fixtures.strategies.scripted import MODE
from tests.fixtures.waiting import until

from paceline.checkpoints.catalog import Checkpoint
from paceline.core.clock import monotonic_s
from paceline.core.errors import RunFolderError
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import Json, plan_hash, read
from paceline.plan.plan import Elastic
from paceline.training.progress import Progress
from paceline.training.run import MessageFollower, _write_result, load_resumable, train
from paceline.training.run_copy import RunCopier


@dataclass
class Listening:
    heard: list[Progress] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        self.heard.append(progress)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_watcher_receives_progress_that_only_grows_and_ends_with_the_last_step(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    watcher = Listening()
    train(small_plan("ssgd", steps=60, pace_s=0.005), tmp_path, watcher, warm=launcher)
    steps = [progress.step for progress in watcher.heard]
    assert steps == sorted(steps)
    assert steps[-1] == 60
    assert len(set(steps)) > 2
    last = watcher.heard[-1]
    assert (last.total_steps, last.num_workers, last.workers_alive) == (60, 2, 0)
    assert last.loss is not None
    assert last.samples_per_s is not None
    assert 0 < last.samples_per_s < 60 * 8 / (60 * 0.005)
    assert all(0 <= progress.workers_alive <= 2 for progress in watcher.heard)


def test_a_watcher_receives_every_adaptation_with_its_reason(launcher: LocalLauncher, tmp_path: Path) -> None:
    watcher = Listening()
    plan = small_plan("adaptive", num_workers=3, batch_sizes=(16,) * 3, steps=10)
    result = train(replace(plan, mode=MODE), tmp_path, watcher, warm=launcher)
    first, second = watcher.notes
    assert "step 4: ssgd → batch" in first
    assert "step 8: batch → local-steps" in second
    assert result["adapted"] == {"count": 2, "way": "local-steps", "shares": "5,1,6"}


def test_a_resumed_runs_progress_begins_where_it_stopped(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("ps", steps=80, pace_s=0.005)
    stopped = real(plan, tmp_path, launcher, stop_at=10)
    (result,) = {len(rows) for rows in stopped.history.steps.values()}
    watcher = Listening()
    _, checkpoint = load_resumable(tmp_path)
    train(plan, tmp_path, watcher, warm=launcher, resume_from=checkpoint)
    steps = [progress.step for progress in watcher.heard]
    assert steps[0] >= result
    assert steps == sorted(steps)
    assert steps[-1] == 80


def test_an_elastic_run_counts_its_workers_and_a_replacement_does_not_raise_its_speed(tmp_path: Path) -> None:
    crew = Elastic(workers=4, min_workers=1, max_workers=4)
    plan = replace(small_plan("ssgd", num_workers=8, batch_sizes=(1,) * 8, steps=1000), elastic=crew)
    watcher = Listening()
    follow = MessageFollower(plan, watcher, 0.0, None, RunCopier(plan, tmp_path, None, watcher.note), None)
    follow({"ev": "started"})
    began_s = monotonic_s()
    until(lambda: monotonic_s() > began_s + 0.2, "a moment of training")
    follow({"ev": "started"})  # a replacement
    took_s = monotonic_s() - began_s
    follow({"ev": "progress", "steps": [100] * 8, "alive": 4, "loss": 1.0})
    (progress,) = watcher.heard
    assert (progress.workers_alive, progress.num_workers) == (4, 4)
    assert progress.samples_per_s is not None
    assert progress.samples_per_s * took_s <= 800


def test_the_speed_of_a_resumed_run_counts_only_the_steps_of_this_session(tmp_path: Path) -> None:
    plan, watcher = small_plan("ssgd", num_workers=2, batch_sizes=(1, 1), steps=2000), Listening()
    checkpoint = Checkpoint(folder=tmp_path, version=1000, clocks=(1000, 1000))
    copier = RunCopier(plan, tmp_path, None, watcher.note)
    follow = MessageFollower(plan, watcher, 0.0, checkpoint, copier, None)
    follow({"ev": "started"})
    began_s = monotonic_s()
    until(lambda: monotonic_s() > began_s + 0.2, "a moment of training")
    took_s = monotonic_s() - began_s
    follow({"ev": "progress", "steps": [1010, 1010], "alive": 2, "loss": 1.0})
    (progress,) = watcher.heard
    assert progress.step == 1010
    assert progress.samples_per_s is not None
    assert progress.samples_per_s * took_s <= 20


def test_the_time_of_an_evaluation_does_not_lower_the_speed(tmp_path: Path) -> None:
    plan, watcher = small_plan("ssgd", num_workers=2, batch_sizes=(1, 1), steps=2000), Listening()
    follow = MessageFollower(plan, watcher, 0.0, None, RunCopier(plan, tmp_path, None, watcher.note), None)
    began_s = monotonic_s()
    follow({"ev": "started"})
    until(lambda: monotonic_s() > began_s + 0.5, "a moment of training and an evaluation")
    follow({"ev": "evaluated", "step": 10, "metrics": "{}", "took_s": 0.4})
    follow({"ev": "progress", "steps": [10, 10], "alive": 2, "loss": 1.0})
    trained_s = monotonic_s() - began_s - 0.4
    (progress,) = watcher.heard
    assert progress.samples_per_s is not None
    assert progress.samples_per_s * trained_s >= 20


def test_the_first_loss_that_is_no_number_is_warned_of_with_what_to_do(tmp_path: Path) -> None:
    plan, watcher = small_plan("ssgd"), Listening()
    follow = MessageFollower(plan, watcher, 0.0, None, RunCopier(plan, tmp_path, None, watcher.note), None)
    follow({"ev": "started"})
    for step, loss in enumerate((1.0, math.nan, math.inf)):
        follow({"ev": "progress", "steps": [step, step], "alive": 2, "loss": loss})
        assert len(watcher.notes) == min(step, 1)
    (note,) = watcher.notes
    assert "--on-nan" in note


def test_a_result_that_a_full_disk_refuses_is_written_when_there_is_room(tmp_path: Path) -> None:
    notes: list[str] = []
    with ExitStack() as full:
        full.enter_context(files_of_at_most(8))

        def note(text: str) -> None:
            notes.append(text)
            full.close()  # the user deletes something

        _write_result({"loss": 0.25, "mode": "ssgd"}, tmp_path, note)
    assert json.loads((tmp_path / "result.json").read_text())["loss"] == 0.25
    (told,) = notes
    assert str(tmp_path) in told


def test_a_run_started_from_a_thread_is_an_ordinary_run(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan, results = small_plan("ssgd"), list[dict[str, Json]]()

    def body() -> None:
        results.append(train(plan, tmp_path, Watching(launcher), warm=launcher))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert results[0]["state_sha256"] == dict.fromkeys(["worker-0", "worker-1"], virtual_hash(plan))


def test_the_folder_names_the_plan_that_was_run(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("asgd")
    run = real(plan, tmp_path, launcher)
    assert read(tmp_path / "plan.json") == plan
    assert run.history.plan == run.result["plan"] == plan_hash(plan)
    kinds = [event.kind for event in run.history.plain]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_finished")
    assert kinds.count("worker_started") == kinds.count("worker_finished") == 3


def test_a_folder_that_another_command_has_filled_meanwhile_is_refused_and_unchanged(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Both commands chose it before either held it; the other one was first, and has ended."""
    real(small_plan("ssgd"), tmp_path, launcher)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError):
        train(small_plan("asgd"), tmp_path, Watching(launcher), warm=launcher)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_drafts_of_a_killed_command_are_removed_by_the_next_one(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    draft = tmp_path / "result.json.4711-0123abcd.part"
    draft.write_bytes(b"half")
    real(small_plan("ssgd"), tmp_path, launcher)
    assert not draft.exists()


def test_a_run_that_is_already_complete_can_be_resumed_and_does_nothing_more(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    for mode in ("ssgd", "asgd"):
        run = real(small_plan(mode), tmp_path / mode, launcher)
        again = resumed(tmp_path / mode, launcher)
        assert again.sha256 == run.sha256
        assert again.positions() == run.positions()


def test_a_model_with_batch_norm_is_reported_to_depend_on_the_number_of_workers(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    task = "paceline.laws.tasks:TinyTask"
    watcher = Listening()
    plan = small_plan("ssgd", steps=4, task=task, task_options={"batch_norm": True})
    train(plan, tmp_path / "with", watcher, warm=launcher)
    assert sum("BatchNorm" in text for text in watcher.notes) == 1
    without = Listening()
    train(small_plan("ssgd", steps=4, task=task), tmp_path / "without", without, warm=launcher)
    assert not any("BatchNorm" in text for text in without.notes)
