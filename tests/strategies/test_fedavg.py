"""Federated averaging on real processes, with clients that sit out. (Laws F1-F4: its sums.)"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import RANDOM_SPEEDS, small_plan
from tests.fixtures.runs.run_plans import real, resumed, virtual, virtual_hash

from paceline.events.summary import end_ns
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay

MOMENTUM = OptimizerChoice(name="momentum", lr=0.05)
SOME = StrategyOptions(sync_every=4, clients_per_round=0.5)
ALL = StrategyOptions(sync_every=4)


def plan_of(options: StrategyOptions, **changes: object) -> Plan:
    return small_plan("fedavg", num_workers=3, strategy=options, optimizer=MOMENTUM, **changes)


@pytest.mark.parametrize("options", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("batch_sizes", [(4, 4, 4), (2, 6, 3)], ids=["equal", "unequal"])
def test_a_real_run_ends_with_equal_workers_and_replays(
    options: StrategyOptions, batch_sizes: tuple[int, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = plan_of(options, steps=15, batch_sizes=batch_sizes, task_options={"batch_norm": True})
    run = real(plan, tmp_path, launcher)
    assert run.positions() == list(range(45))
    assert run.sha256 == virtual_hash(plan)
    assert replay(plan, run.history, run.sha256).is_equal


def test_shared_memory_and_gloo_end_with_the_same_bits(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = replace(plan_of(SOME, steps=15), num_workers=2, batch_sizes=(4, 4))
    shm = real(plan, tmp_path / "shm", launcher)
    gloo = real(replace(plan, transport=Transport.GLOO), tmp_path / "gloo", launcher)
    assert shm.sha256 == gloo.sha256


@pytest.mark.parametrize("options", [ALL, SOME], ids=["all", "some"])
def test_a_stopped_and_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    options: StrategyOptions, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = plan_of(options, steps=60, pace_s=0.005)
    first = real(plan, tmp_path, launcher, stop_at=3)
    assert first.result["stopped_early"] is True
    assert 0 < len(first.positions()) < plan.total_gradients
    assert replay(plan, first.history, first.sha256).is_equal
    again = resumed(tmp_path, launcher)
    assert again.positions() == list(range(plan.total_gradients))
    assert again.sha256 == virtual_hash(plan)
    assert replay(plan, again.history, again.sha256).is_equal


def test_checkpoints_of_all_workers_lie_together_though_some_made_more_steps(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = plan_of(SOME, steps=24, checkpoint_every=5)
    real(plan, tmp_path, launcher)
    folders = sorted((tmp_path / "checkpoints").glob("at-*"))
    assert len(folders) == 3
    for folder in folders:
        assert {file.stem for file in folder.glob("*.json")} == {"worker-0", "worker-1", "worker-2"}
    assert folders[-1].name == f"at-{plan.total_gradients:08d}"


def test_a_client_that_sits_out_waits_and_holds_the_agreed_parameters() -> None:
    one_of_three = replace(SOME, clients_per_round=0.3)
    plan = plan_of(one_of_three, steps=8, pace_s=0.01, stragglers=RANDOM_SPEEDS)
    run = virtual(plan)
    rows = [row for mine in run.history.steps.values() for row in mine]
    rounds = [row.version for row in sorted(rows, key=lambda row: row.start_ns + row.wait_ns)]
    assert rounds == sorted(rounds) == [number for number in range(6) for _ in range(4)]
    for mine in run.history.steps.values():
        for earlier, later in pairwise(mine):
            assert end_ns(earlier) == later.start_ns  # the rounds it sat out are waiting, not a hole
    assert len({state_hash(replica.arena.named_state()) for replica in run.replicas.values()}) == 1


def test_a_stop_request_reaches_the_clients_that_sit_out() -> None:
    one_of_three = replace(SOME, clients_per_round=0.3)
    plan = plan_of(one_of_three, steps=40, pace_s=0.01)
    run = virtual(plan, stops_after={1: 6})
    counts = {rank: len(rows) for rank, rows in run.history.steps.items()}
    assert counts[1] == 8
    assert sum(counts.values()) < plan.total_gradients
    assert len({state_hash(replica.arena.named_state()) for replica in run.replicas.values()}) == 1
    assert replay(plan, run.history, state_hash(run.final_state())).is_equal
