"""The parameter server acts as its log says, and resumes where it was."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.fixtures.runs.plans import RANDOM_SPEEDS, ledger_plan, small_plan
from tests.fixtures.runs.run_plans import virtual

from paceline.core.clock import SystemClock
from paceline.core.ids import Clock, Rank, Version
from paceline.events.log import MemoryLog
from paceline.plan.catalog import SCRIPT_TASK
from paceline.plan.plan import Plan, StrategyOptions
from paceline.strategies.asgd import Asgd
from paceline.strategies.backup import Backup
from paceline.strategies.port import ServerSide
from paceline.strategies.ps import Ps
from paceline.strategies.ssp import Ssp
from paceline.transport.ports import Answer, AtEnd, Obsolete, Reply, Slots
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica
from paceline.worker.server.core import ParameterServer
from paceline.worker.wiring import build_task, set_up_torch


def new_server(
    plan: Plan, side: type[ServerSide], *, task: str | None = None
) -> tuple[ParameterServer, list[Slots]]:
    set_up_torch(plan)
    replica = Replica(plan, build_task(plan), torch.device("cpu"), SystemClock())
    served = replace(plan, task=task or plan.task)
    server = ParameterServer(served, replica, side, log=MemoryLog(), clock=SystemClock())
    slots = [
        Slots(torch.zeros_like(replica.arena.state), torch.zeros_like(replica.arena.state))
        for _ in range(plan.num_workers)
    ]
    for rank, own in enumerate(slots):
        server.attach(Rank(rank), own)
    return server, slots


def reply_fields(replies: Sequence[Reply]) -> list[tuple[int, int, int | None]]:
    """The answers, as (rank, version, share)."""
    return [(reply.rank, reply.version, reply.position) for reply in replies if isinstance(reply, Answer)]


def test_asgd_applies_a_gradient_at_once_and_counts_the_version() -> None:
    server, slots = new_server(ledger_plan("asgd"), Asgd)
    assert reply_fields(server.join(Rank(0), Clock(0))) == [(0, 0, 0)]
    slots[0].gradients[5] = 1.0
    assert reply_fields(server.push(Rank(0), wants_stop=False)) == [(0, 1, 1)]
    assert slots[0].parameters[5] == -0.5  # a rate of 1, divided by two workers


def test_ps_answers_no_worker_before_all_have_pushed_and_then_applies_one_mean() -> None:
    server, slots = new_server(ledger_plan("ps"), Ps)
    for rank in (0, 1):
        server.join(Rank(rank), Clock(0))
    slots[0].gradients[0], slots[1].gradients[1] = 1.0, 3.0
    assert server.push(Rank(1), wants_stop=False) == []
    answers = server.push(Rank(0), wants_stop=False)
    assert reply_fields(answers) == [(0, 1, 2), (1, 1, 3)]
    assert slots[1].parameters[:2].tolist() == [-0.5, -1.5]


def backup_server() -> tuple[ParameterServer, list[Slots]]:
    """Three workers have joined, two gradients make an update; worker 2 is late for the first one."""
    server, slots = new_server(ledger_plan("backup", num_workers=3, steps=3), Backup)
    for rank in range(3):
        server.join(Rank(rank), Clock(0))
    for rank in (0, 1, 2):
        slots[rank].gradients[rank] = 1.0
    assert server.push(Rank(1), wants_stop=False) == []
    replies = server.push(Rank(0), wants_stop=False)
    assert replies[0] == Obsolete(Rank(2), server.version)
    assert reply_fields(replies) == [(0, 1, 2), (1, 1, 3)]  # share 2 was worker 2's; the lowest goes first
    return server, slots


def test_backup_applies_the_mean_of_the_first_and_notifies_the_late_at_once() -> None:
    server, slots = backup_server()
    assert slots[0].parameters[:3].tolist() == [-0.5, -0.5, 0.0]
    assert reply_fields(server.again(Rank(2))) == [(2, 1, 4)]
    assert set(server.applied) == {0, 1}


def test_a_gradient_that_crosses_with_the_cancellation_is_discarded_and_its_worker_reads_on() -> None:
    server, slots = backup_server()
    assert reply_fields(server.push(Rank(2), wants_stop=False)) == [(2, 1, 4)]
    assert slots[2].parameters[:3].tolist() == [-0.5, -0.5, 0.0]
    for rank in (0, 2):
        server.push(Rank(rank), wants_stop=False)
    assert server.version == 2
    assert set(server.applied) == {0, 1, 2, 4}
    assert server.clocks == {0: 2, 1: 1, 2: 2}  # the step that was thrown away has its number


def test_a_saved_server_hands_out_again_what_was_abandoned() -> None:
    server, _ = backup_server()
    again, _ = new_server(ledger_plan("backup", num_workers=3, steps=3), Backup)
    again.restore(server.snapshot())
    answers = [reply_fields(again.join(Rank(rank), again.clocks[Rank(rank)])) for rank in range(3)]
    assert answers == [[(0, 1, 2)], [(1, 1, 3)], [(2, 1, 4)]]


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
    assert reply_fields(server.push(Rank(0), wants_stop=False)) == [(0, 1, None)]


def test_workers_of_a_script_wait_for_the_last_version() -> None:
    server, slots = new_server(ledger_plan("asgd", steps=1), Asgd, task=SCRIPT_TASK)
    for rank in (0, 1):
        server.join(Rank(rank), Clock(0))
    slots[1].gradients[1] = 1.0
    assert server.push(Rank(0), wants_stop=False) == [AtEnd(Rank(0))]
    ends = server.push(Rank(1), wants_stop=False)
    assert ends == [Answer(Rank(rank), Version(2), None) for rank in (0, 1)]
    assert slots[0].parameters[1] == slots[1].parameters[1] == -0.5


def test_a_server_that_was_saved_continues_with_what_is_not_yet_applied() -> None:
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
    answers = [reply_fields(again.join(Rank(rank), again.clocks[Rank(rank)])) for rank in (0, 1)]
    assert answers == [[(0, 1, 0)], [(1, 1, 2)]]


@pytest.mark.parametrize(("mode", "bound"), [("asgd", None), ("ssp", 1), ("ssp", 0), ("ps", None)])
def test_the_log_states_which_worker_read_pushed_and_made_which_version(mode: str, bound: int | None) -> None:
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


def test_ssp_without_a_bound_shares_the_work_and_with_one_each_worker_does_its_own() -> None:
    plan = small_plan("ssp", steps=20, pace_s=0.01, strategy=StrategyOptions(staleness=None))
    unbounded, bounded = Ssp.assignment(plan, frozenset()), Ssp.assignment(small_plan("ssp"), frozenset())
    assert [unbounded.next(1, 0), unbounded.next(1, 1)] == [0, 1]
    assert [bounded.next(1, 0), bounded.next(1, 1)] == [1, 3]
