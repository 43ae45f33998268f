"""Does the parameter server do what its log says, and can it be taken up again where it was?"""

from itertools import pairwise

import pytest
import torch
from tests.fixtures.plans import RANDOM_SPEEDS, ledger_plan, small_plan
from tests.fixtures.runs import virtual

from paceline.clock import SystemClock
from paceline.events.log import MemoryLog
from paceline.ids import Clock, Rank
from paceline.plan.plan import Plan, StrategyOptions
from paceline.strategies.asgd import Asgd
from paceline.strategies.port import ServerSide
from paceline.strategies.ps import Ps
from paceline.strategies.ssp import Ssp
from paceline.transport.ports import Slots
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica
from paceline.worker.server import ParameterServer
from paceline.worker.wiring import build_task, set_up_torch


def new_server(plan: Plan, side: type[ServerSide]) -> tuple[ParameterServer, list[Slots]]:
    set_up_torch(plan)
    replica = Replica(plan, build_task(plan), torch.device("cpu"), SystemClock())
    server = ParameterServer(plan, replica, side, log=MemoryLog(), clock=SystemClock())
    slots = [
        Slots(torch.zeros_like(replica.arena.state), torch.zeros_like(replica.arena.state))
        for _ in range(plan.num_workers)
    ]
    for rank, own in enumerate(slots):
        server.attach(Rank(rank), own)
    return server, slots


def test_asgd_applies_a_gradient_at_once_and_counts_the_version() -> None:
    server, slots = new_server(ledger_plan("asgd"), Asgd)
    (first,) = server.join(Rank(0), Clock(0))
    assert (first.version, first.position) == (0, 0)
    slots[0].gradients[5] = 1.0
    (second,) = server.push(Rank(0), wants_stop=False)
    assert (second.version, second.position) == (1, 1)
    assert slots[0].parameters[5] == -0.5  # a rate of 1, divided by two workers


def test_ps_answers_nobody_before_everybody_has_pushed_and_then_applies_one_mean() -> None:
    server, slots = new_server(ledger_plan("ps"), Ps)
    for rank in (0, 1):
        server.join(Rank(rank), Clock(0))
    slots[0].gradients[0], slots[1].gradients[1] = 1.0, 3.0
    assert server.push(Rank(1), wants_stop=False) == []
    answers = server.push(Rank(0), wants_stop=False)
    assert [(a.rank, a.version, a.position) for a in answers] == [(0, 1, 2), (1, 1, 3)]
    assert slots[1].parameters[:2].tolist() == [-0.5, -1.5]


def test_what_a_worker_reads_is_one_version_and_does_not_change_under_it() -> None:
    server, slots = new_server(ledger_plan("asgd"), Asgd)
    for rank in (0, 1):
        server.join(Rank(rank), Clock(0))
    slots[0].gradients[5] = 1.0
    server.push(Rank(0), wants_stop=False)
    assert slots[1].parameters.abs().sum() == 0
    server.push(Rank(1), wants_stop=False)
    assert slots[1].parameters[5] == -0.5


def test_with_nothing_left_a_worker_is_let_go() -> None:
    server, _ = new_server(ledger_plan("asgd", steps=1, num_workers=1), Asgd)
    server.join(Rank(0), Clock(0))
    (last,) = server.push(Rank(0), wants_stop=False)
    assert (last.version, last.position) == (1, None)


def test_a_server_that_was_saved_goes_on_with_what_is_not_yet_applied() -> None:
    plan = ledger_plan("asgd", steps=3)
    server, slots = new_server(plan, Asgd)
    for rank in (0, 1):
        server.join(Rank(rank), Clock(0))
    slots[1].gradients[7] = 1.0
    server.push(Rank(1), wants_stop=False)  # share 1 is applied; shares 0 and 2 are on their way
    saved = server.snapshot()
    again, _ = new_server(plan, Asgd)
    again.restore(saved)
    assert again.version == 1
    assert again.clocks == {0: 0, 1: 1}
    assert state_hash(again.replica.arena.named_state()) == state_hash(server.replica.arena.named_state())
    positions = [again.join(Rank(rank), again.clocks[Rank(rank)])[0].position for rank in (0, 1)]
    assert positions == [0, 2]


@pytest.mark.parametrize(("mode", "bound"), [("asgd", None), ("ssp", 1), ("ssp", 0), ("ps", None)])
def test_the_log_says_who_read_pushed_and_made_which_version(mode: str, bound: int | None) -> None:
    plan = small_plan(
        mode,
        num_workers=3,
        pace_s=0.01,
        stragglers=RANDOM_SPEEDS,
        strategy=StrategyOptions(staleness=bound),
    )
    rows = virtual(plan).history.server
    for rank in range(3):
        own = [(r.op, r.step) for r in rows if r.rank == rank]
        steps = sum(op == "apply" for op, _ in own)
        assert own == [(op, step) for step in range(steps) for op in ("read", "push", "apply")]
    assert sorted(r.position for r in rows if r.op == "apply") == list(range(plan.total_gradients))
    assert all(later.at_ns >= earlier.at_ns for earlier, later in pairwise(rows))
    for row in rows:
        if row.op == "apply":
            assert row.staleness == row.version - 1 - row.read_version


def test_a_bound_is_seen_in_the_recorded_gap() -> None:
    for bound in (0, 1, 3):
        plan = small_plan(
            "ssp",
            num_workers=3,
            steps=20,
            pace_s=0.01,
            stragglers=RANDOM_SPEEDS,
            strategy=StrategyOptions(staleness=bound),
        )
        reads = [r.gap for r in virtual(plan).history.server if r.op == "read"]
        assert max(reads) == bound


def test_ssp_without_a_bound_shares_the_work_and_with_one_everybody_does_their_own() -> None:
    plan = small_plan("ssp", steps=20, pace_s=0.01, strategy=StrategyOptions(staleness=None))
    unbounded, bounded = Ssp.assignment(plan, frozenset()), Ssp.assignment(small_plan("ssp"), frozenset())
    assert [unbounded.next(1, 0), unbounded.next(1, 1)] == [0, 1]
    assert [bounded.next(1, 0), bounded.next(1, 1)] == [1, 3]
