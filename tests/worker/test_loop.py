"""The training loop records what happened, to the nanosecond of virtual time, and stops consistently."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import RANDOM_SPEEDS, VIRTUAL_MODES, small_plan
from tests.fixtures.runs.run_plans import real, virtual

from paceline.events.schema import PHASES, StepRow
from paceline.events.summary import end_ns
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import StrategyOptions
from paceline.sync.fault_rules import StragglerRule
from paceline.transport.torch_dist import STOP_POLL_EVERY
from paceline.worker.participant import state_hash

MS = 1_000_000
PACE_S = 0.010


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_every_step_is_one_row_in_order_and_rows_of_a_worker_do_not_overlap(mode: str) -> None:
    plan = small_plan(mode, pace_s=PACE_S, stragglers=RANDOM_SPEEDS)
    history = virtual(plan).history
    steps = history.steps
    assert sum(map(len, steps.values())) == plan.total_gradients
    for rank, rows in steps.items():
        assert [row.step for row in rows] == list(range(len(rows)))
        assert {row.samples for row in rows} == {4}
        spans = [(row.start_ns, end_ns(row)) for row in rows]
        spans += [(row.start_ns, row.start_ns + row.lasted_ns) for row in history.abandoned.get(rank, [])]
        for (_, ended_ns), (began_ns, _) in itertools.pairwise(sorted(spans)):
            assert ended_ns == began_ns
    positions = sorted(row.position for rows in steps.values() for row in rows)
    assert positions == list(range(plan.total_gradients))


def test_a_step_takes_its_pace_times_its_slowness_and_the_fast_wait_for_the_slow() -> None:
    slow = (StragglerRule(worker=1, factor=3.0, delay_s=0.005, first_step=1, end_step=3),)
    steps = virtual(small_plan("ssgd", steps=4, pace_s=PACE_S, stragglers=slow)).history.steps
    delays, waits = (
        {rank: [getattr(row, f"{phase}_ns") / MS for row in rows] for rank, rows in steps.items()}
        for phase in ("delay", "wait")
    )
    assert delays == {0: [10, 10, 10, 10], 1: [10, 35, 35, 10]}
    assert waits == {0: [0, 25, 25, 0], 1: [0, 0, 0, 0]}


def test_in_virtual_time_everything_but_pace_and_waiting_takes_no_time() -> None:
    rows = virtual(small_plan("ssgd", pace_s=PACE_S)).history.steps[0]
    free = [phase for phase in PHASES if phase not in ("delay", "wait")]
    assert {getattr(row, f"{phase}_ns") for row in rows for phase in free} == {0}
    assert rows[-1].start_ns == 11 * 10 * MS


def test_a_localsgd_worker_waits_and_sends_only_when_it_averages() -> None:
    slow = (StragglerRule(worker=1, factor=2.0),)
    plan = small_plan("localsgd", steps=8, pace_s=PACE_S, stragglers=slow)
    rows = virtual(plan).history.steps[0]
    assert [row.synced for row in rows] == [False, False, False, True] * 2
    assert [row.wait_ns / MS for row in rows] == [0, 0, 0, 40] * 2
    assert [row.bytes_out > 0 for row in rows] == [False, False, False, True] * 2


def test_a_gradient_is_recorded_with_the_version_it_was_computed_on() -> None:
    run = virtual(small_plan("asgd", num_workers=3, pace_s=PACE_S, stragglers=RANDOM_SPEEDS))
    read = {(r.rank, r.step): r.version for r in run.history.server if r.op == "read"}
    for rank, rows in run.history.steps.items():
        assert [row.version for row in rows] == [read[rank, row.step] for row in rows]
    assert max(row.version for row in run.history.steps[0]) > 20


def stopped_after(mode: str, strategy: StrategyOptions, stops: dict[int, int]) -> dict[int, int]:
    plan = small_plan(
        mode, num_workers=3, steps=40, pace_s=PACE_S, stragglers=RANDOM_SPEEDS, strategy=strategy
    )
    steps = virtual(plan, stops_after=stops).history.steps
    return {rank: len(rows) for rank, rows in steps.items()}


def test_a_stop_request_of_one_worker_stops_all_of_ssgd_after_the_same_step() -> None:
    assert stopped_after("ssgd", StrategyOptions(), {1: 6}) == {0: 6, 1: 6, 2: 6}


def test_localsgd_stops_when_it_next_averages() -> None:
    every_five = StrategyOptions(sync_every=5)
    assert stopped_after("localsgd", every_five, {2: 6}) == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize(("mode", "bound"), [("ps", None), ("ssp", 0), ("ssp", 2)])
def test_behind_a_server_all_stop_after_the_same_step(mode: str, bound: int | None) -> None:
    counts = stopped_after(mode, StrategyOptions(staleness=bound), {0: 6})
    assert len(set(counts.values())) == 1
    assert 6 <= counts[0] < 12


def test_asgd_stops_with_no_share_left_out() -> None:
    plan = small_plan("asgd", num_workers=3, steps=40, pace_s=PACE_S, stragglers=RANDOM_SPEEDS)
    steps = virtual(plan, stops_after={0: 6}).history.steps
    positions = sorted(row.position for rows in steps.values() for row in rows)
    assert positions == list(range(len(positions)))
    assert len(positions) < 40


@pytest.mark.parametrize("mode", ["ssgd", "ddp", "localsgd", "ps"])
def test_real_workers_that_receive_a_stop_request_all_stop_at_the_same_step(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(mode, steps=4000, pace_s=0.002)
    run = real(plan, tmp_path, launcher, stop_at=5)
    counts = {rank: len(rows) for rank, rows in run.history.steps.items()}
    assert run.result["stopped_early"] is True
    assert len(set(counts.values())) == 1
    assert 5 <= counts[0] < 4000
    if mode == "ddp":
        assert counts[0] % STOP_POLL_EVERY == 0
    assert run.sha256  # all hold the same bits


def test_the_state_of_a_stopped_run_is_that_of_a_shorter_run() -> None:
    for mode in ("ssgd", "ps"):
        plan = small_plan(mode, steps=40, pace_s=PACE_S)
        stopped = virtual(plan, stops_after={0: 6})
        (finished,) = {len(rows) for rows in stopped.history.steps.values()}
        shorter = virtual(replace(plan, steps=finished))
        assert state_hash(stopped.final_state()) == state_hash(shorter.final_state())


def test_rows_are_plain_numbers_that_json_can_hold() -> None:
    row = virtual(small_plan("ssgd")).history.steps[0][0]
    assert isinstance(row, StepRow)
    assert {type(value) for value in row} <= {int, float, bool, type(None)}
