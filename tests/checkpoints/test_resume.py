"""Resumed runs: a run that was stopped in order ends with the bits of an uninterrupted one."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import RealRun, Watching, real, resumed
from tests.fixtures.wording import ANY_WORKER, Wording

from paceline.core.errors import PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import dumps
from paceline.plan.plan import GossipVariant, OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.topology import Topology
from paceline.training.run import load_resumable, train
from paceline.worker.replay.schedule import replay

STEPS = 60
ADAM = OptimizerChoice(name="adam", lr=0.01)
LOCKSTEP = StrategyOptions(staleness=0)
PUSH_ON_A_STAR = StrategyOptions(gossip=GossipVariant.PUSH_SUM, topology=Topology.STAR)
SLEEPER = (StragglerRule(worker=1, delay_s=3600.0),)


def stopped_and_resumed(plan: Plan, run_dir: Path, launcher: LocalLauncher) -> RealRun:
    first = real(plan, run_dir, launcher, stop_at=3)
    assert first.result["stopped_early"] is True
    assert len(first.positions()) < plan.total_gradients
    again = resumed(run_dir, launcher)
    assert again.result["stopped_early"] is False
    assert again.positions() == list(range(plan.total_gradients))
    return again


def plan_of(mode: str, **changes: object) -> Plan:
    return small_plan(mode, steps=STEPS, pace_s=0.005, optimizer=ADAM, **changes)


@pytest.mark.parametrize(
    "plan",
    [
        plan_of("single"),
        plan_of("ssgd"),
        plan_of("ssgd", task_options={"batch_norm": True}),
        plan_of("ssgd", transport=Transport.GLOO),
        plan_of("ddp"),
        plan_of("fsdp"),
        plan_of("ps"),
        plan_of("ps", transport=Transport.TCP, num_workers=3),
        plan_of("backup", strategy=StrategyOptions(backup_workers=0), num_workers=3),
        plan_of("localsgd"),
        plan_of("diloco", strategy=StrategyOptions(sync_every=4)),
        plan_of("ssp", strategy=LOCKSTEP),
        plan_of("ssp", strategy=LOCKSTEP, num_workers=3),
        plan_of("gossip", num_workers=5, task_options={"batch_norm": True}),
        plan_of("gossip", strategy=PUSH_ON_A_STAR, num_workers=3, batch_sizes=(2, 4, 3)),
    ],
    ids=lambda plan: f"{plan.mode}-{plan.transport.value}-{plan.num_workers}",
)
def test_a_stopped_and_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    plan: Plan, launcher: LocalLauncher, tmp_path: Path
) -> None:
    again = stopped_and_resumed(plan, tmp_path / "stopped", launcher)
    through = real(replace(plan, pace_s=0.0), tmp_path / "through", launcher)
    assert again.sha256 == through.sha256


@pytest.mark.parametrize(
    "plan",
    [
        plan_of("asgd", num_workers=3),
        plan_of("asgd", transport=Transport.TCP),
        plan_of("ssp", strategy=StrategyOptions(staleness=2)),
        plan_of("ssp", strategy=StrategyOptions(staleness=None)),
        plan_of("dssp", strategy=StrategyOptions(staleness=2), num_workers=3),
        plan_of("ps"),
        plan_of("backup", num_workers=4, stragglers=SLEEPER),
        plan_of("backup", num_workers=4, stragglers=SLEEPER, transport=Transport.TCP),
        plan_of("ssgd"),
        plan_of("localsgd"),
        plan_of("gossip", num_workers=4),
        plan_of("adpsgd", num_workers=3, task_options={"batch_norm": True}),
    ],
    ids=lambda plan: f"{plan.mode}-{plan.transport.value}-{plan.strategy.staleness}",
)
def test_a_stopped_and_resumed_run_replays_bit_by_bit(
    plan: Plan, launcher: LocalLauncher, tmp_path: Path
) -> None:
    again = stopped_and_resumed(plan, tmp_path, launcher)
    verdict = replay(plan, again.history, again.sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.gradients == plan.total_gradients


def test_work_abandoned_before_a_checkpoint_is_still_reported_after_a_resume(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = plan_of("backup", num_workers=4, stragglers=SLEEPER)
    first = real(plan, tmp_path, launcher, stop_at=10)
    again = resumed(tmp_path, launcher)
    before, after = ([row for row in run.history.server if row.op == "abandon"] for run in (first, again))
    assert before  # also of the sleeper, which never finishes a step
    assert after[: len(before)] == before
    assert again.history.abandoned[1][: len(first.history.abandoned[1])] == first.history.abandoned[1]


def test_a_run_may_be_stopped_and_resumed_more_than_once(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = replace(plan_of("asgd"), pace_s=0.04)  # so that each stop request arrives before the end
    real(plan, tmp_path, launcher, stop_at=3)
    _, checkpoint = load_resumable(tmp_path)
    second = train(plan, tmp_path, Watching(launcher, stop_at=30), warm=launcher, resume_from=checkpoint)
    assert second["stopped_early"] is True
    last = resumed(tmp_path, launcher)
    assert last.positions() == list(range(plan.total_gradients))
    assert len(last.history.sessions) == 2
    assert replay(plan, last.history, last.sha256).is_equal


@pytest.mark.parametrize("mode", ["gossip", "adpsgd"])
def test_a_finished_run_that_is_resumed_keeps_its_model(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    run = real(small_plan(mode, num_workers=3), tmp_path, launcher)
    assert resumed(tmp_path, launcher).sha256 == run.sha256


def test_a_run_that_left_no_checkpoint_cannot_be_resumed(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "plan.json").write_text(dumps(small_plan("ssgd")))
    with wording.raises(PacelineError) as caught:
        load_resumable(tmp_path)
    assert "--checkpoint-every" in caught.value.hint


@pytest.mark.parametrize("mode", ["single", "ssgd"])
def test_what_was_made_with_another_model_is_refused(
    mode: str, launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    real(plan_of(mode), tmp_path, launcher, stop_at=3)
    plan, checkpoint = load_resumable(tmp_path)
    more = replace(plan, task_options={"batch_norm": True})
    with wording.raises(PacelineError, hide=ANY_WORKER):
        train(more, tmp_path, Watching(launcher), warm=launcher, resume_from=checkpoint)
    wider = replace(plan, task="xor", task_options={"hidden": 9})
    with wording.raises(PacelineError, hide=ANY_WORKER):
        train(wider, tmp_path, Watching(launcher), warm=launcher, resume_from=checkpoint)
