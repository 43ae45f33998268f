"""AD-PSGD: pairwise averaging without barriers, on real processes."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import RANDOM_SPEEDS, small_plan
from tests.fixtures.runs.run_plans import distance, real, virtual
from tests.fixtures.wording import Wording

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import StrategyOptions
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.topology import Topology
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay


def test_fast_workers_do_more_and_no_worker_waits_before_the_end() -> None:
    slow = (StragglerRule(worker=1, factor=4.0),)
    rows = virtual(small_plan("adpsgd", num_workers=3, steps=30, pace_s=0.01, stragglers=slow)).history.steps
    results = {rank: len(mine) for rank, mine in rows.items()}
    assert results[0] > 3 * results[1]
    assert sum(results.values()) == 90
    assert all(row.wait_ns == 0 for mine in rows.values() for row in mine[:-1])


def test_two_workers_in_step_average_the_same_pair_in_turn() -> None:
    """With equal speeds the order is known, so a hand calculation follows it: read, average, update."""
    plan = small_plan("adpsgd", steps=2, pace_s=0.01, task="paceline.laws.tasks:QuadraticTask")
    rows = virtual(plan).history.steps
    assert [[(row.version, row.exchange, row.peer) for row in rows[rank]] for rank in (0, 1)] == [
        [(0, 1, 1), (1, 3, 1)],
        [(0, 2, 0), (2, 4, 0)],
    ]


def test_all_replicas_end_with_one_model_counters_included() -> None:
    plan = small_plan(
        "adpsgd", num_workers=4, pace_s=0.01, stragglers=RANDOM_SPEEDS, task_options={"batch_norm": True}
    )
    run = virtual(plan)
    assert len({state_hash(replica.arena.named_state()) for replica in run.replicas.values()}) == 1
    assert int(run.final_state()["1.num_batches_tracked"]) == len(run.history.steps[0])


@pytest.mark.parametrize("topology", [Topology.RING, Topology.COMPLETE, Topology.STAR])
def test_it_learns_about_as_well_as_ssgd(topology: Topology) -> None:
    work = {"steps": 200, "num_workers": 4, "pace_s": 0.01}
    ours = virtual(small_plan("adpsgd", strategy=StrategyOptions(topology=topology), **work)).final_state()
    theirs = virtual(small_plan("ssgd", **work)).final_state()
    start = virtual(small_plan("ssgd", **work, lr=1e-300)).final_state()
    assert distance(ours, theirs) < 0.25 * distance(start, theirs)


def test_a_worker_that_comes_too_late_for_any_share_still_ends_with_the_model(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    slow = (StragglerRule(worker=0, delay_s=1.0),)
    plan = small_plan("adpsgd", num_workers=3, steps=2, stragglers=slow)
    run = real(plan, tmp_path, launcher)
    assert run.positions() == list(range(6))
    assert len(run.sha256) == 64
    assert replay(plan, run.history, run.sha256).is_equal


def test_a_log_with_other_partners_is_found_out(wording: Wording) -> None:
    plan = small_plan("adpsgd", num_workers=4, pace_s=0.01)
    run = virtual(plan)
    final = state_hash(run.final_state())
    assert replay(plan, run.history, final).is_equal
    row = run.history.steps[2][1]
    run.history.steps[2][1] = row._replace(peer=(row.peer or 0) + 1)
    verdict = replay(plan, run.history, final)
    assert verdict.parted is not None
    assert verdict.parted.startswith("worker-2, step 1: ")
    wording(verdict.parted)
    run.history.steps[2][1] = row._replace(loss=row.loss + 1e-16 + row.loss * 1e-15)
    assert not replay(plan, run.history, final).is_equal
    del run.history.steps[2][1]
    verdict = replay(plan, run.history, final)
    assert verdict.parted is not None
    wording(verdict.parted)


def test_another_seed_chooses_other_partners() -> None:
    plan = small_plan(
        "adpsgd", num_workers=4, pace_s=0.01, strategy=StrategyOptions(topology=Topology.COMPLETE)
    )
    partners = [
        [row.peer for rows in virtual(replace(plan, seed=seed)).history.steps.values() for row in rows]
        for seed in (1, 2)
    ]
    assert partners[0] != partners[1]
