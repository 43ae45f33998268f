"""One process in virtual time computes what many processes compute, and leaves the same run folder."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import RANDOM_SPEEDS, small_plan
from tests.fixtures.runs.run_plans import Watching, real, resumed
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, PacelineError, TrainingError
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import dumps, plan_hash
from paceline.plan.plan import Dtype, Launcher, Plan, Transport
from paceline.plan.resolve import resolve
from paceline.training.run import train
from paceline.worker.replay.schedule import replay

FACTS = Facts(cpu_count=2, cuda_devices=0, modules=frozenset())


def in_turns(mode: str, **changes: object) -> Plan:
    plan = small_plan(mode, **changes)
    pace_s = plan.pace_s or 0.01
    return replace(plan, launcher=Launcher.VIRTUAL, transport=Transport.NONE, pace_s=pace_s)


@pytest.mark.parametrize("mode", ["single", "ssgd", "ps", "localsgd", "fedavg", "diloco", "gossip"])
def test_modes_that_wait_for_each_other_end_with_the_bits_of_processes(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    options = {"batch_norm": True}
    processes = real(small_plan(mode, task_options=options), tmp_path / "processes", launcher)
    virtual = real(in_turns(mode, task_options=options, stragglers=RANDOM_SPEEDS), tmp_path / "one", launcher)
    assert virtual.sha256 == processes.sha256
    assert virtual.positions() == processes.positions()
    assert virtual.result["bytes"] == processes.result["bytes"]


@pytest.mark.parametrize("mode", ["asgd", "ssp", "dssp", "easgd", "adpsgd", "backup"])
def test_an_asynchronous_run_is_the_same_every_time_and_replays(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = in_turns(mode, num_workers=4, stragglers=RANDOM_SPEEDS)
    first, second = (real(plan, tmp_path / name, launcher) for name in ("first", "second"))
    assert first.sha256 == second.sha256
    assert replay(plan, first.history, first.sha256).is_equal


def test_a_step_takes_its_pace_and_nothing_else_takes_time(launcher: LocalLauncher, tmp_path: Path) -> None:
    run = real(in_turns("ssgd", pace_s=3600.0), tmp_path, launcher)  # an hour each
    assert run.result["training_s"] == 12 * 3600
    assert run.result["samples_per_s"] == pytest.approx(8 / 3600)


@pytest.mark.parametrize(
    "mode", ["ssgd", "localsgd", "fedavg", "asgd", "easgd", "gossip", "adpsgd", "backup"]
)
def test_a_stopped_run_resumes_where_it_was(mode: str, launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = in_turns(mode, steps=20_000, num_workers=4)
    first = real(plan, tmp_path, launcher, stop_at=3)
    assert first.result["stopped_early"] is True
    assert 0 < len(first.positions()) < plan.total_gradients
    short = replace(plan, steps=max(len(rows) for rows in first.history.steps.values()) + 5)
    (tmp_path / "plan.json").write_text(dumps(short))
    log = tmp_path / "events.jsonl"
    log.write_text(log.read_text().replace(plan_hash(plan), plan_hash(short)))  # a plan must be the log's own
    again = resumed(tmp_path, launcher)
    assert again.positions() == list(range(short.total_gradients))


def test_an_error_of_a_task_ends_the_run_with_its_reason(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = replace(in_turns("ssgd"), task="tests.fixtures.tasks.user_tasks:FailingTask")
    with pytest.raises(TrainingError) as caught:
        train(plan, tmp_path, Watching(launcher), warm=launcher)
    assert "workers" in caught.value.what


STACKABLE = ["ssgd", "localsgd", "asgd", "ps", "gossip", "adpsgd", "backup"]


# With buffers in every mode; without them once for all-reduce and once for a server.
@pytest.mark.parametrize(
    ("mode", "batch_norm"), [*((mode, True) for mode in STACKABLE), ("ssgd", False), ("asgd", False)]
)
def test_vmapped_gradients_are_those_of_one_after_another(
    mode: str, batch_norm: bool, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = in_turns(mode, num_workers=4, stragglers=RANDOM_SPEEDS, task_options={"batch_norm": batch_norm})
    plain = real(plan, tmp_path / "plain", launcher)
    stacked = real(replace(plan, vmap=True), tmp_path / "stacked", launcher)
    assert stacked.positions() == plain.positions()
    for rank, rows in plain.history.steps.items():
        losses = [row.loss for row in rows]
        assert [row.loss for row in stacked.history.steps[rank]] == pytest.approx(losses, rel=1e-10)


def test_unequal_batches_cannot_be_stacked_and_are_computed_one_by_one(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = in_turns("ssgd", batch_sizes=(2, 5))
    plain = real(plan, tmp_path / "plain", launcher)
    assert real(replace(plan, vmap=True), tmp_path / "stacked", launcher).sha256 == plain.sha256


def test_a_vmapped_run_is_not_replayed_bit_by_bit(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    plan = replace(in_turns("asgd"), vmap=True)
    run = real(plan, tmp_path, launcher)
    with wording.raises(PacelineError):
        replay(plan, run.history, run.sha256)


def test_a_store_stays_on_the_gpu_where_there_is_one() -> None:
    config = TrainConfig(mode="asgd", num_workers=4)
    assert resolve(config, replace(FACTS, cuda_devices=1)).transport is Transport.CUDA_IPC
    assert resolve(config, replace(FACTS, cuda_devices=2)).transport is Transport.TCP
    assert resolve(config, FACTS).transport is Transport.SHM


def test_what_the_plan_decides() -> None:
    plan = resolve(TrainConfig(launcher="virtual", num_workers=64, mode="asgd"), FACTS)
    assert (plan.transport, plan.pace_s, plan.vmap) == (Transport.NONE, 0.01, False)
    on_gpu = resolve(TrainConfig(launcher="virtual"), replace(FACTS, cuda_devices=1))
    assert on_gpu.vmap
    assert on_gpu.dtype is Dtype.FLOAT32


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(launcher="virtual", mode="ddp"),
        TrainConfig(vmap=True),
        TrainConfig(launcher="virtual", transport="shm"),
    ],
    ids=["mode", "vmap", "transport"],
)
def test_what_cannot_work_is_refused(config: TrainConfig, wording: Wording) -> None:
    with wording.raises(ConfigError):
        resolve(config, FACTS)
