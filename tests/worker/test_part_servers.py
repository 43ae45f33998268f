"""Does each part apply each share once, whoever dies between two parts, and do the parts make one model?"""

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.test_elastic_server import WORKERS, Crowd, elastic_plan, new_server

from paceline.checkpoints.snapshot import Snapshot, from_bytes, to_bytes
from paceline.core.clock import SystemClock
from paceline.core.ids import Rank
from paceline.events.schema import PartRow
from paceline.plan.plan import OptimizerChoice, Plan
from paceline.tasks.optim import Adam
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica
from paceline.worker.server.partition_server import PartServer
from paceline.worker.server.partitions import CombinedParts, build_machine, restore
from paceline.worker.server.state_machine import ElasticServer, Order, OrderKind
from paceline.worker.wiring import build_task, set_up_torch

PARTS = 3


def parted_plan(mode: str, parts: int = PARTS, **changes: object) -> Plan:
    plan = elastic_plan(mode, **changes)
    assert plan.elastic is not None
    return replace(plan, elastic=replace(plan.elastic, servers=parts))


def machine(plan: Plan, part: int) -> ElasticServer | PartServer:
    set_up_torch(plan)
    return build_machine(plan, build_task(plan), part)


def bits(server: ElasticServer | PartServer) -> str:
    return state_hash(server.replica.arena.named_state())


@dataclass
class Part:
    """A part's primary, and those who follow it."""

    server: PartServer
    followers: list[PartServer] = field(default_factory=list)
    rows: list[PartRow] = field(default_factory=list)
    orders: int = 0

    def push(self, rank: int, share: int, gradient: torch.Tensor) -> None:
        self.orders += 1
        order = Order(OrderKind.PUSHED, Rank(rank), share, self.orders)
        _, rows = self.server.order(order, gradient)
        for follower in self.followers:
            assert follower.order(order, gradient) == ([], rows)
        self.rows += rows

    def follow(self) -> None:
        follower = machine(self.server.plan, self.server.part)
        assert isinstance(follower, PartServer)
        follower.take_whole(from_bytes(to_bytes(self.server.whole())))
        self.followers.append(follower)

    def promote(self) -> None:
        if self.followers:
            self.server = self.followers.pop()


@dataclass
class PartedCrowd(Crowd):
    """Workers push to the other parts first; how far each has come is known."""

    parts: list[Part] = field(default_factory=list)

    def reach(self, rank: int, parts: int) -> None:
        """What this worker computes comes to so many of the other parts."""
        share = self.given[rank][1]
        for part in self.parts[:parts]:
            # It was computed from what this worker read: another one's would differ.
            dice = torch.Generator().manual_seed(share * WORKERS + rank)
            part.push(rank, share, torch.randn(part.server.numel, generator=dice, dtype=part.server.dtype))

    def push(self, rank: int, *, stops: bool = False) -> None:
        self.reach(rank, len(self.parts))
        super().push(rank, stops=stops)


def crowd_of(plan: Plan) -> PartedCrowd:
    head = machine(plan, 0)
    assert isinstance(head, ElasticServer)
    others = [machine(plan, part) for part in range(1, PARTS)]
    return PartedCrowd(head, parts=[Part(server) for server in others if isinstance(server, PartServer)])


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "die between", "come", "follow", "promote"]), st.integers(0, 9)
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(mode=st.sampled_from(["asgd", "ssp", "dssp"]), acts=ACTS)
def test_whoever_dies_between_two_parts_each_part_applies_each_share_once(
    mode: str, acts: list[tuple[str, int]]
) -> None:
    crowd = crowd_of(parted_plan(mode))
    for rank in range(WORKERS):
        crowd.join(rank)
    for act, number in acts:
        if crowd.server.is_finished:
            break
        part = crowd.parts[number % len(crowd.parts)]
        if act == "push" and crowd.given:
            crowd.push(sorted(crowd.given)[number % len(crowd.given)])
        elif act == "die between" and crowd.given:
            rank = sorted(crowd.given)[number % len(crowd.given)]
            crowd.reach(rank, number % PARTS)
            crowd.lose(rank)
        elif act == "come":
            crowd.join(number % WORKERS)
        elif act == "follow" and len(part.followers) < 2:
            part.follow()
        elif act == "promote":
            part.promote()
        for other in crowd.parts:
            assert crowd.server.applied <= other.server.applied, "what part 0 has, every part has"
    crowd.finish()
    shares = list(range(WORKERS * 4))
    assert sorted(row.position for row in crowd.rows if row.op == "apply") == shares
    for part in crowd.parts:
        assert sorted(row.position for row in part.rows) == shares
        assert [row.version for row in part.rows] == list(range(1, len(shares) + 1))
        assert {bits(follower) for follower in part.followers} <= {bits(part.server)}


class Asked:
    """What the parts hold, without the wire."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def states(self) -> list[Snapshot]:
        return [from_bytes(to_bytes(part.server.snapshot())) for part in self._parts]


def together(plan: Plan, crowd: PartedCrowd) -> CombinedParts:
    return CombinedParts(plan, build_task(plan), crowd.server, Asked(crowd.parts))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw"])
def test_in_parts_the_same_gradients_lead_to_the_same_bits_as_on_one_server(optimizer: str) -> None:
    choice = OptimizerChoice(name=optimizer, lr=0.05, weight_decay=0.01)
    plan = parted_plan("asgd", optimizer=choice)
    alone = new_server(replace(plan, elastic=replace(plan.elastic, servers=1)))  # type: ignore[type-var]
    crowd = crowd_of(plan)
    model = together(plan, crowd).model
    layout = model.arena.layout
    dice = torch.Generator().manual_seed(1)
    heads = [part.server.replica.cuts.where for part in crowd.parts]
    mine = crowd.server.replica.cuts.where  # type: ignore[attr-defined]
    for server in (alone, crowd.server):
        server.order(Order(OrderKind.JOINED, Rank(0), 1, 0))
    for share in range(12):
        gradient = torch.randn(layout.numel, generator=dice, dtype=layout.dtype)
        for part, where in zip(crowd.parts, heads, strict=True):
            part.push(0, share, gradient[where])
        number = alone.members[Rank(0)].ticket
        alone.order(Order(OrderKind.PUSHED, Rank(0), number, share), gradient.clone())
        crowd.server.order(Order(OrderKind.PUSHED, Rank(0), number, share), gradient[mine].clone())
    whole = together(plan, crowd)
    whole.snapshot()
    assert state_hash(whole.model.arena.named_state()) == state_hash(alone.replica.arena.named_state())


def test_from_a_checkpoint_of_all_parts_what_a_part_has_ahead_is_left_out_when_it_is_done_again() -> None:
    choice = OptimizerChoice(name="adam", lr=0.01)
    plan = parted_plan("asgd", optimizer=choice, task_options={"batch_norm": True})
    crowd = crowd_of(plan)
    for rank in range(WORKERS):
        crowd.join(rank)
    for rank in (0, 1, 2, 0):
        crowd.push(rank)
    crowd.reach(1, 1)  # it is on its way to part 0
    saved = from_bytes(to_bytes(together(plan, crowd).snapshot()))
    again = crowd_of(plan)
    restore(again.server, saved, 0)
    for number, part in enumerate(again.parts, start=1):
        restore(part.server, saved, number)
        assert bits(part.server) == bits(crowd.parts[number - 1].server)
        assert isinstance(part.server.replica.optimizer, Adam)
        assert part.server.replica.optimizer.steps == part.server.version
    assert bits(again.server) == bits(crowd.server)
    assert len(again.parts[0].server.applied) == len(again.server.applied) + 1
    again.finish()
    for part in again.parts:
        assert sorted(part.server.applied) == list(range(WORKERS * 4))
        assert part.server.version == WORKERS * 4


def test_a_checkpoint_of_parts_holds_the_whole_model_by_its_own_names() -> None:
    plan = parted_plan("asgd")
    crowd = crowd_of(plan)
    crowd.join(0)
    crowd.push(0)
    model = Replica(plan, build_task(plan), torch.device("cpu"), SystemClock())
    saved = together(plan, crowd).snapshot()
    for name, tensor in model.arena.named_state().items():
        assert saved.tensors[name].shape == tensor.shape
