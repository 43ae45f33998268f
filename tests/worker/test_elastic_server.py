"""Primary and backup stay equal, and each share is applied once, with lost and repeated messages."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.runs.plans import small_plan

from paceline.checkpoints.snapshot import from_bytes, to_bytes
from paceline.core.clock import SystemClock
from paceline.core.ids import Rank
from paceline.events.schema import ServerRow
from paceline.plan.plan import AsgdVariant, Elastic, Plan, StrategyOptions, Transport
from paceline.strategies.load import builtin_strategy
from paceline.transport.ports import Answer, Obsolete
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica
from paceline.worker.server.state_machine import ElasticServer, Order, OrderKind, RequestVerdict
from paceline.worker.wiring import build_task, set_up_torch

WORKERS = 3


def elastic_plan(mode: str, **changes: object) -> Plan:
    elastic = Elastic(workers=WORKERS, min_workers=1, max_workers=WORKERS)
    given_changes = {"num_workers": WORKERS, "steps": 4, "transport": Transport.TCP, **changes}
    return small_plan(mode, elastic=elastic, **given_changes)


def new_server(plan: Plan) -> ElasticServer:
    set_up_torch(plan)
    side = builtin_strategy(plan.mode)
    assert side is not None
    return ElasticServer(plan, Replica(plan, build_task(plan), torch.device("cpu"), SystemClock()), side)


def bits(server: ElasticServer) -> str:
    return state_hash(server.replica.arena.named_state())


@dataclass
class Crowd:
    """Workers in one process: what each was last given, and as whom it asks."""

    server: ElasticServer
    followers: list[ElasticServer] = field(default_factory=list)
    given: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> (ticket, share)
    incarnations: dict[int, int] = field(default_factory=dict)
    rows: list[ServerRow] = field(default_factory=list)
    released: list[int] = field(default_factory=list)  # who was told that nothing is left
    # By rank: the ticket whose share is not wanted any more.
    late: dict[int, int] = field(default_factory=dict)
    orders: int = 0

    def _order(self, kind: OrderKind, rank: int, number: int, share: int | None = None) -> None:
        self.orders += 1
        order = Order(kind, Rank(rank), number, self.orders)
        gradient = None if share is None else self._gradient(share)
        replies, rows = self.server.order(order, None if gradient is None else gradient.clone())
        for follower in self.followers:
            assert follower.order(order, gradient) == (replies, rows)
        self.rows += [row for row in rows if isinstance(row, ServerRow)]
        for reply in replies:
            if isinstance(reply, Obsolete):
                self.late[reply.rank] = self.server.members[reply.rank].ticket
                continue
            assert isinstance(reply, Answer), "an elastic server keeps its last answers itself"
            if reply.position is None:
                self.released.append(reply.rank)
                self.given.pop(reply.rank, None)
            else:
                self.given[reply.rank] = (self.server.members[reply.rank].ticket, reply.position)

    def _gradient(self, share: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(share)
        return torch.randn(self.server.replica.arena.state.shape, generator=generator)

    def join(self, rank: int) -> None:
        self.incarnations[rank] = self.orders + 1
        self.given.pop(rank, None)
        assert self._weigh(OrderKind.JOINED, rank) is RequestVerdict.ORDER
        self._order(OrderKind.JOINED, rank, self.incarnations[rank])
        if rank in self.released:
            return
        assert self._weigh(OrderKind.JOINED, rank) is RequestVerdict.REPEAT

    def push(self, rank: int, *, stops: bool = False) -> None:
        ticket, share = self.given.pop(rank)
        kind = OrderKind.PUSHED_AND_STOP if stops else OrderKind.PUSHED
        assert self._weigh(kind, rank, ticket) is RequestVerdict.ORDER
        self._order(kind, rank, ticket, share)
        # It asks again, as if the answer was lost on the way: nothing is done twice.
        again = self._weigh(kind, rank, ticket)
        assert again is (RequestVerdict.UNKNOWN if rank in self.released else RequestVerdict.REPEAT)

    def again(self, rank: int) -> None:
        """A late worker stops, as it was told; who was not told cannot hand back what it has."""
        ticket = self.given[rank][0]
        if self.late.get(rank) != ticket:
            assert self._weigh(OrderKind.AGAIN, rank, ticket) is RequestVerdict.REPEAT
            return
        del self.given[rank]
        assert self._weigh(OrderKind.AGAIN, rank, ticket) is RequestVerdict.ORDER
        self._order(OrderKind.AGAIN, rank, ticket)
        again = self._weigh(OrderKind.AGAIN, rank, ticket)
        assert again is (RequestVerdict.UNKNOWN if rank in self.released else RequestVerdict.REPEAT)

    def lose(self, rank: int) -> None:
        ticket = self.given.pop(rank, (0, 0))[0]
        self._order(OrderKind.GONE, rank, self.incarnations[rank])
        assert self._weigh(OrderKind.PUSHED, rank, ticket) is RequestVerdict.FENCED  # it wakes up, too late
        assert self._weigh(OrderKind.JOINED, rank) is RequestVerdict.FENCED

    def follow(self) -> None:
        """One more server takes the whole state, over the wire."""
        follower = new_server(self.server.plan)
        follower.take_whole(from_bytes(to_bytes(self.server.whole())))
        self.followers.append(follower)

    def promote(self) -> None:
        self.server = self.followers.pop()

    def _weigh(self, kind: OrderKind, rank: int, ticket: int = 0) -> RequestVerdict:
        return self.server.weigh(kind, Rank(rank), self.incarnations[rank], ticket)

    @property
    def living(self) -> list[int]:
        return sorted(self.server.members)

    def finish(self) -> None:
        while not self.server.is_finished:
            if not self.living:
                self.join(0)
            for rank in list(self.given):
                if rank in self.given:
                    self.push(rank)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "again", "join", "lose", "follow", "promote"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(mode=st.sampled_from(["asgd", "ssp", "dssp", "ps", "backup", "backup"]), acts=ACTS)
def test_whatever_happens_each_share_is_applied_once_and_all_servers_hold_the_same_bits(
    mode: str, acts: list[tuple[str, int]]
) -> None:
    crowd = Crowd(new_server(elastic_plan(mode)))
    for rank in range(WORKERS):
        crowd.join(rank)
    for act, number in acts:
        if crowd.server.is_finished:
            break
        if act == "push" and crowd.given:
            crowd.push(sorted(crowd.given)[number % len(crowd.given)])
        elif act == "again" and crowd.given:
            crowd.again(sorted(crowd.given)[number % len(crowd.given)])
        elif act == "join":
            crowd.join(number % WORKERS)
        elif act == "lose" and crowd.living:
            crowd.lose(crowd.living[number % len(crowd.living)])
        elif act == "follow" and len(crowd.followers) < 2:
            crowd.follow()
        elif act == "promote" and crowd.followers:
            crowd.promote()
    crowd.finish()
    applied = [row for row in crowd.rows if row.op == "apply"]
    assert sorted(row.position for row in applied) == list(range(WORKERS * 4))
    versions = [row.version for row in applied]
    assert versions == sorted(versions)
    assert sorted(set(versions)) == list(range(1, crowd.server.version + 1))
    assert {bits(server) for server in [crowd.server, *crowd.followers]} == {bits(crowd.server)}


@pytest.mark.parametrize("variant", list(AsgdVariant))
def test_a_backup_takes_over_what_corrections_need(variant: AsgdVariant) -> None:
    options = StrategyOptions(asgd=variant, dc_lambda=0.5, max_staleness=2)
    crowd = Crowd(new_server(elastic_plan("asgd", strategy=options)))
    for rank in range(WORKERS):
        crowd.join(rank)
    crowd.push(0)
    crowd.follow()  # workers 1 and 2 still compute on version 0
    for rank in (1, 2, 0, 0, 0, 2):
        if rank in crowd.given:
            crowd.push(rank)
    assert bits(crowd.server) == bits(crowd.followers[0])
    crowd.promote()
    crowd.finish()
    applied = [row.position for row in crowd.rows if row.op == "apply"]
    assert sorted(applied) == list(range(WORKERS * 4))


def test_the_clock_of_the_dead_leaves_the_minimum_and_a_joining_worker_starts_at_it() -> None:
    crowd = Crowd(new_server(elastic_plan("ssp", steps=8, strategy=StrategyOptions(staleness=1))))
    for rank in range(WORKERS):
        crowd.join(rank)
    for _ in range(2):
        for rank in (0, 1):
            if rank in crowd.given:
                crowd.push(rank)
    assert 0 not in crowd.given, "worker 0 is held back by worker 2, which has done nothing"
    assert 1 not in crowd.given
    crowd.lose(2)
    assert {0, 1} <= set(crowd.given), "the dead hold no worker back"
    low = min(crowd.server._admission.clocks.values())
    assert low == 2
    crowd.join(2)
    assert crowd.server._admission.clocks[Rank(2)] == low
    assert 2 in crowd.given


def test_an_expected_worker_that_never_comes_does_not_hold_the_others_back_for_ever() -> None:
    crowd = Crowd(new_server(elastic_plan("ps")))
    crowd.join(0)
    crowd.push(0)
    assert 0 not in crowd.given
    for rank in (1, 2):
        crowd._order(OrderKind.ABSENT, rank, 0)
    assert 0 in crowd.given


def test_a_worker_without_a_share_waits_for_one_that_comes_back() -> None:
    crowd = Crowd(new_server(elastic_plan("asgd", steps=1)))
    for rank in range(WORKERS):
        crowd.join(rank)
    crowd.push(0)
    assert 0 not in crowd.given
    assert not crowd.released, "two shares are still being computed"
    crowd.lose(1)
    assert crowd.given[0][1] == 1, "worker 0 does what worker 1 left"
    crowd.push(0)
    crowd.push(2)
    assert sorted(crowd.released) == [0, 2]
    assert crowd.server.is_finished


def test_after_a_stop_request_what_was_handed_out_is_still_done() -> None:
    crowd = Crowd(new_server(elastic_plan("asgd")))
    for rank in range(WORKERS):
        crowd.join(rank)
    crowd.push(0, stops=True)
    crowd.lose(1)
    crowd.finish()
    assert sorted(crowd.server.applied) == [0, 1, 2]


def test_a_checkpoint_restores_no_member_and_no_ticket_is_valid() -> None:
    crowd = Crowd(new_server(elastic_plan("asgd")))
    for rank in range(WORKERS):
        crowd.join(rank)
    crowd.push(0)
    again = new_server(crowd.server.plan)
    again.restore(from_bytes(to_bytes(crowd.server.snapshot())))
    ticket = crowd.given[1][0]
    assert again.weigh(OrderKind.PUSHED, Rank(1), crowd.incarnations[1], ticket) is RequestVerdict.UNKNOWN
    after = Crowd(again)
    after.finish()
    assert sorted(row.position for row in after.rows if row.op == "apply") == list(range(1, WORKERS * 4))


def test_an_update_is_made_of_the_first_gradients_and_the_death_of_a_late_worker_costs_nothing() -> None:
    crowd = Crowd(new_server(elastic_plan("backup")))
    for rank in range(WORKERS):
        crowd.join(rank)
    shares = {rank: share for rank, (_, share) in crowd.given.items()}
    crowd.push(0)
    crowd.push(2)
    assert crowd.server.version == 1, "two of three are enough"
    assert list(crowd.late) == [1]
    crowd.lose(1)
    assert crowd.server.version == 1
    taken_over = [share for _, share in crowd.given.values()]
    assert shares[1] in taken_over, "the next worker does the share of the late one"
    crowd.push(0)
    crowd.push(2)
    assert crowd.server.version == 2, "the two that are left are as many as an update needs"
    crowd.lose(2)
    crowd.push(0)
    assert crowd.server.version == 3, "with fewer than that, all who are left are enough"


def test_without_spares_backup_has_the_bits_of_ps_whichever_worker_did_which_share() -> None:
    result = set[str]()
    for mode, order in (("ps", (0, 1, 2)), ("backup", (2, 0, 1))):
        crowd = Crowd(new_server(elastic_plan(mode, strategy=StrategyOptions(backup_workers=0))))
        for rank in order:
            crowd.join(rank)
        crowd.finish()
        result.add(bits(crowd.server))
    assert len(result) == 1
