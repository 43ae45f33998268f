"""Adaptive mode: correct results under every decision, and resume."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import distance, real, resumed, virtual
from tests.fixtures.strategies.scripted import MODE
from torch import Tensor

from paceline.events.read import History, PlainEvent
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.strategies.adaptive import Adaptive
from paceline.sync.adaptive_setting import Adapted, AdaptiveSetting, Allowed, SyncPolicy
from paceline.sync.fault_rules import StragglerRule
from paceline.training.run import load_resumable
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay
from paceline.worker.script.in_turn import StrategyFactory

ADAM = OptimizerChoice(name="adam", lr=0.01)
LOCAL = StrategyOptions(adaptive=Allowed.LOCAL_STEPS, sync_every=4)


def decided(*changes: tuple[int, SyncPolicy, tuple[int, ...]]) -> StrategyFactory:
    """A strategy that decides so, whatever the speeds are."""
    events = [
        Adapted(
            step=step, was=SyncPolicy.SSGD, now=AdaptiveSetting(way, shares), reason="a test wants it"
        ).fields()
        for step, way, shares in changes
    ]
    return Adaptive.following(History(plain=[PlainEvent("adapted", "worker-0", 0, e) for e in events]))


def with_decisions(plan: Plan, *changes: tuple[int, SyncPolicy, tuple[int, ...]]) -> VirtualRun:
    return virtual(plan, kind=decided(*changes))


def three(**changes: object) -> Plan:
    return small_plan("adaptive", num_workers=3, steps=14, batch_sizes=(4, 4, 4), **changes)


def test_a_cut_is_the_samples_of_the_step_in_other_hands() -> None:
    cuts = [
        (2, SyncPolicy.BATCH, (1, 2, 9)),
        (5, SyncPolicy.BATCH, (10, 1, 1)),
        (9, SyncPolicy.SSGD, (4, 4, 4)),
    ]
    run = with_decisions(three(), *cuts)
    assert distance(run.final_state(), virtual(replace(three(), mode="ssgd")).final_state()) < 1e-12
    samples = {rank: [row.samples for row in rows] for rank, rows in run.history.steps.items()}
    assert samples[2] == [4] * 2 + [9] * 3 + [1] * 4 + [4] * 5


def test_local_steps_of_equal_numbers_are_localsgd() -> None:
    plan = three(strategy=LOCAL)
    local = virtual(replace(plan, mode="localsgd", strategy=StrategyOptions(sync_every=4)))
    assert state_hash(with_decisions(plan).final_state()) == state_hash(local.final_state())


def test_a_fast_worker_does_more_of_the_shares_and_rounds_stay_whole() -> None:
    run = with_decisions(three(strategy=LOCAL), (4, SyncPolicy.LOCAL_STEPS, (6, 1, 5)))
    steps = run.history.steps
    # Four steps as planned, two rounds of four by speed, and a last one of two.
    assert [len(steps[rank]) for rank in range(3)] == [4 + 6 + 6 + 3, 4 + 1 + 1 + 1, 4 + 5 + 5 + 2]
    assert sorted(row.position for rows in steps.values() for row in rows) == list(range(42))
    assert [row.position // 3 for row in steps[1]] == [0, 1, 2, 3, 4, 8, 12]
    assert {row.position % 3 for row in steps[1]} == {1}


@pytest.mark.parametrize("task", ["TinyTask", "TorchAdamTask", "TorchMomentumTask"])
def test_when_local_steps_end_all_optimizers_are_one_again(task: str) -> None:
    where = "paceline.laws.tasks" if task == "TinyTask" else "tests.fixtures.tasks.user_tasks"
    choice = OptimizerChoice(name="adam", lr=0.05) if task == "TinyTask" else None
    plan = three(task=f"{where}:{task}", optimizer=choice)
    run = with_decisions(plan, (3, SyncPolicy.LOCAL_STEPS, (7, 1, 4)), (11, SyncPolicy.BATCH, (6, 2, 4)))
    assert len({state_hash(r.arena.named_state()) for r in run.replicas.values()}) == 1
    assert len({state_hash(r.optimizer_state()) for r in run.replicas.values()}) == 1
    assert len({state_hash(r.optimizer_numbers()) for r in run.replicas.values()}) == 1


def test_a_step_with_fewer_samples_takes_less_of_its_pace() -> None:
    plan = three(pace_s=0.010, stragglers=(StragglerRule(worker=2, factor=3.0, delay_s=0.005),))
    rows = with_decisions(plan, (2, SyncPolicy.BATCH, (6, 5, 1))).history.steps
    assert [rows[rank][5].delay_ns for rank in range(3)] == [15_000_000, 12_500_000, 12_500_000]


def scripted(**changes: object) -> Plan:
    work: dict[str, object] = {"num_workers": 3, "batch_sizes": (16,) * 3, "steps": 42, "pace_s": 0.002}
    plan = small_plan("adaptive", optimizer=ADAM, **{**work, **changes})
    return replace(plan, mode=MODE)


def test_real_processes_adapt_and_replay_bit_by_bit(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = scripted()
    run = real(plan, tmp_path, launcher)
    assert run.positions() == list(range(plan.total_gradients))
    assert run.result["adapted"] == {"count": 4, "way": "local-steps", "shares": "2,6,4"}
    assert sum(row.samples for rows in run.history.steps.values() for row in rows) == plan.total_samples
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.gradients == plan.total_gradients
    assert run.sha256 == state_hash(virtual(plan).final_state())


def test_over_gloo_it_computes_the_same(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = replace(scripted(), transport=Transport.GLOO)
    run = real(plan, tmp_path, launcher)
    assert run.result["adapted"] == {"count": 4, "way": "local-steps", "shares": "2,6,4"}
    assert run.sha256  # all hold the same bits


def test_a_record_of_other_decisions_does_not_replay() -> None:
    plan = scripted()
    run = virtual(plan)
    other = next(n for n, event in enumerate(run.history.plain) if event.fields["step"] == 8)
    del run.history.plain[other]
    verdict = replay(plan, run.history, state_hash(run.final_state()))
    assert verdict.parted is not None


@pytest.mark.parametrize("stop_at", [6, 12, 36], ids=["batch", "local steps", "local steps again"])
def test_a_stopped_run_resumes_with_its_shares_and_replays(
    stop_at: int, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = scripted(steps=60, pace_s=0.02)
    first = real(plan, tmp_path, launcher, stop_at=stop_at)
    assert first.result["stopped_early"] is True
    result = len(first.positions()) // 3
    assert first.positions() == list(range(3 * result))
    assert load_resumable(tmp_path)[1].folder.name == f"at-{3 * result:08d}"
    assert replay(plan, first.history, first.sha256).is_equal
    again = resumed(tmp_path, launcher)
    assert again.positions() == list(range(plan.total_gradients))
    assert again.sha256 == state_hash(virtual(replace(plan, pace_s=0.0)).final_state())
    verdict = replay(plan, again.history, again.sha256)
    assert verdict.is_equal, verdict.parted


def test_checkpoints_of_local_steps_are_complete_and_named_by_the_shares_done(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    run = real(scripted(steps=16, checkpoint_every=5), tmp_path, launcher)
    assert {rank: len(rows) for rank, rows in run.history.steps.items()} == {0: 18, 1: 10, 2: 20}
    result = sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir())
    assert result == ["at-00000015", "at-00000036", "at-00000048"]
    assert load_resumable(tmp_path)[1].clocks == (18, 10, 20)


def test_decisions_after_the_checkpoint_that_a_run_resumed_from_never_happened() -> None:
    history = virtual(scripted()).history
    history.resume(20, (20, 20, 20))
    assert [event.fields["step"] for event in history.plain] == [4, 8, 16]


def test_its_measurements_survive_a_checkpoint() -> None:
    plan = small_plan("adaptive", num_workers=3, batch_sizes=(16,) * 3, pace_s=0.01, steps=40)
    plan = replace(plan, stragglers=(StragglerRule(worker=1, factor=4.0),))
    kept: list[dict[str, Tensor]] = []

    class Remembering(Adaptive):
        def close(self) -> None:
            kept.append(self.snapshot())
            super().close()

    virtual(plan, kind=Remembering)
    assert all(torch.equal(item["decided"], kept[0]["decided"]) for item in kept)
    steps, policy, proposal, *rest = kept[0]["decided"].tolist()
    assert (steps, list(SyncPolicy)[int(policy)], list(SyncPolicy)[int(proposal)]) == (
        40,
        SyncPolicy.BATCH,
        SyncPolicy.BATCH,
    )
    assert rest[:3] == [22, 5, 21]
    assert rest[3:] == pytest.approx([0.01 / 16, 0.04 / 16, 0.01 / 16])
