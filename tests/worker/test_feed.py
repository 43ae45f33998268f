"""A task may return datasets, loaders and schedulers of torch's; what is loaded ahead changes no number."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import distance, real, resumed, virtual

from paceline.checkpoints.snapshot import from_bytes, to_bytes
from paceline.core.clock import SystemClock
from paceline.core.errors import ConfigError, MisfitError, OwnClassError, TrainingError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan
from paceline.sync.assignment import WorkUnit
from paceline.sync.samples import SampleStream
from paceline.tasks.load import load_task
from paceline.tasks.torch_adapters import samples_of
from paceline.training.run import train
from paceline.worker.batches import SharePredictor
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay
from paceline.worker.replica import Replica

TASKS = "tests.fixtures.tasks.torch_tasks"


def own(mode: str, task: str, **changes: object) -> Plan:
    return replace(small_plan(mode), task=f"{TASKS}:{task}", **changes)  # type: ignore[arg-type]  # by name


def refused(task: str) -> str:
    with pytest.raises(OwnClassError) as caught:
        samples_of(load_task(f"{TASKS}:{task}", seed=0, options={}))
    return caught.value.what


def test_a_dataset_in_memory_is_trained_on_like_its_tensors() -> None:
    plain = replace(small_plan("ssgd"), task="paceline.laws.tasks:TinyTask")
    ours = replace(plain, task=f"{TASKS}:TensorDatasetTask")
    assert distance(virtual(ours).final_state(), virtual(plain).final_state()) == 0.0


@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
@pytest.mark.parametrize("task", ["DatasetTask", "LoaderTask"])
def test_processes_load_the_same_noise_that_a_replay_finds(
    mode: str, task: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = own(mode, task, task_options={"noise": 0.5})
    run = real(plan, tmp_path / "run", launcher)
    verdict = replay(plan, run.history, str(run.sha256))
    assert verdict.is_equal, verdict.parted
    positions = sorted(row.position for rows in run.history.steps.values() for row in rows)
    assert positions == list(range(plan.total_gradients))


def test_accumulated_parts_are_loaded_ahead_too(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = own("ssgd", "DatasetTask", task_options={"noise": 0.5}, grad_accumulation=2)
    run = real(plan, tmp_path / "run", launcher)
    assert replay(plan, run.history, str(run.sha256)).is_equal


def test_a_loader_gives_its_dataset_and_how_it_collates() -> None:
    samples: Any = samples_of(load_task(f"{TASKS}:LoaderTask", seed=0, options={}))  # Any: two columns
    rows: Any = samples_of(load_task(f"{TASKS}:DatasetTask", seed=0, options={}))  # Any: two columns
    places = torch.tensor([4, 1]).numpy()
    inputs, targets = samples.batch(places)
    plain_inputs, plain_targets = rows.batch(places)
    assert torch.equal(inputs, plain_inputs * 2)
    assert torch.equal(targets, plain_targets)
    assert samples.num_workers == 2


def test_the_next_batch_is_loaded_while_a_step_computes(launcher: LocalLauncher, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    plan = own("single", "OverlapTask", num_workers=1, batch_sizes=(4,), task_options={"seen": str(seen)})
    plan = replace(plan, steps=2)
    train(plan, tmp_path / "run", _Quiet(), warm=launcher)
    assert len(list(seen.iterdir())) == 8


@pytest.mark.parametrize("task", ["StreamTask", "WeightedTask", "ColumnsTask"])
def test_what_would_choose_samples_itself_is_refused_with_file_and_line(task: str) -> None:
    assert "torch_tasks.py:" in refused(task)


def test_it_is_refused_before_the_run_starts(launcher: LocalLauncher, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(own("ssgd", "WeightedTask"), tmp_path / "run", _Quiet(), warm=launcher)
    assert caught.value.problems[0].code == "E107"
    assert "torch_tasks.py:" in caught.value.what


def test_an_error_in_a_loader_process_names_the_users_line(launcher: LocalLauncher, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        train(own("ssgd", "BadRowTask"), tmp_path / "run", _Quiet(), warm=launcher)
    assert "(tests/fixtures/tasks/torch_tasks.py:" in caught.value.what


def test_the_guess_follows_a_worker_that_does_several_shards() -> None:
    guess = SharePredictor(steps=10, global_batch=8)
    for step in range(3):
        guess.saw(WorkUnit(0, step))
        guess.saw(WorkUnit(2, step))
    assert guess.after(WorkUnit(2, 2)) == WorkUnit(0, 3)
    assert guess.after(WorkUnit(0, 3)) == WorkUnit(2, 3)
    assert guess.after(WorkUnit(2, 9)) is None


def test_after_wrong_guesses_none_are_made_until_they_would_have_been_right() -> None:
    guess = SharePredictor(steps=100, global_batch=8)
    for step in (0, 1, 5, 7, 20):
        guess.saw(WorkUnit(0, step))
    assert guess.after(WorkUnit(0, 20)) is None
    guess.saw(WorkUnit(0, 33))
    assert guess.after(WorkUnit(0, 33)) == WorkUnit(0, 46)


@pytest.mark.parametrize("mode", ["single", "ssgd", "asgd", "localsgd"])
def test_a_scheduler_sets_the_rate_by_the_step_of_the_run(mode: str) -> None:
    alone = {"num_workers": 1, "batch_sizes": (4,), "lr_scale": 1.0}
    plan = replace(small_plan(mode), task=f"{TASKS}:ScheduledTask", **alone)  # type: ignore[arg-type]  # by name
    task = load_task(plan.task, seed=plan.seed, options={})
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(plan.seed)
    model, samples = task.model(), samples_of(task)
    optimizer, scheduler = task.optimizer(model.parameters())
    final = virtual(plan).final_state()
    taken = SampleStream(num_samples=len(samples), seed=plan.seed, in_order=False, block=plan.shuffle_block)
    for step in range(plan.steps):
        optimizer.zero_grad()
        task.loss(model, samples.batch(taken.take(4 * step, 4))).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        scheduler.step()
    assert distance(final, dict(model.state_dict())) < 1e-12


@pytest.mark.parametrize("kind", ["step", "cycle", "lambda"])
def test_a_checkpoint_holds_the_schedule(kind: str) -> None:
    plan = own("ssgd", "ScheduledTask", task_options={"kind": kind})
    through, before, after = (_replica(plan) for _ in range(3))
    for replica, steps in ((through, range(9)), (before, range(5))):
        _train(replica, steps)
    after.restore(from_bytes(to_bytes(before.snapshot())))
    _train(after, range(5, 9))
    assert after.optimizer.param_groups[0]["lr"] == through.optimizer.param_groups[0]["lr"]
    assert state_hash(after.whole_state()) == state_hash(through.whole_state())


@pytest.mark.soak
def test_a_resumed_run_finds_its_schedule_again(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = own("ssgd", "ScheduledTask", steps=400, pace_s=0.002, task_options={"kind": "cycle"})
    assert real(plan, tmp_path / "stopped", launcher, stop_at=5).result["stopped_early"] is True
    through = real(replace(plan, pace_s=0.0), tmp_path / "through", launcher)
    assert resumed(tmp_path / "stopped", launcher).sha256 == through.sha256


def _replica(plan: Plan) -> Replica:
    return Replica(
        plan, load_task(plan.task, seed=0, options=plan.task_options), torch.device("cpu"), SystemClock()
    )


def _train(replica: Replica, steps: range) -> None:
    for step in steps:
        replica.step = step
        for parameter in replica.arena.module.parameters():
            parameter.grad = torch.full_like(parameter, 0.01 * step)
        replica.update()


def test_a_replay_finds_the_schedule() -> None:
    plan = own("asgd", "ScheduledTask", num_workers=3, batch_sizes=(4, 4, 4), pace_s=0.01)
    run = virtual(plan)
    assert replay(plan, run.history, state_hash(run.final_state())).is_equal


@pytest.mark.parametrize("kind", ["plateau", "dict"])
def test_what_is_no_schedule_by_steps_is_refused_with_file_and_line(kind: str) -> None:
    with pytest.raises(OwnClassError) as caught:
        virtual(own("ssgd", "ScheduledTask", task_options={"kind": kind}))
    assert "torch_tasks.py:" in caught.value.what


@pytest.mark.parametrize("mode", ["single", "ssgd", "asgd"])
def test_a_scheduler_is_refused_before_anything_is_computed(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    computed = tmp_path / "computed"
    options = {"kind": "plateau", "marker": str(computed)}
    with pytest.raises(ConfigError) as caught:
        real(own(mode, "ScheduledTask", task_options=options), tmp_path / "run", launcher)
    assert "torch_tasks.py:" in caught.value.what
    assert not computed.exists()


def test_two_rulers_of_one_rate_are_refused_with_file_and_line() -> None:
    with pytest.raises(MisfitError) as caught:
        virtual(own("ssgd", "ScheduledTask", lr=0.5))
    assert "torch_tasks.py:" in caught.value.what


class _Quiet:
    def progress(self, progress: object) -> None: ...

    def note(self, text: str) -> None: ...
