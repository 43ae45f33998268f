"""Replicated state machine of an elastic parameter server: equal orders lead to equal bits.

Its input is a sequence of orders: a worker joined, pushed a gradient, or was lost. A backup that has received
every order can therefore take over. A work unit that was assigned is done by its worker or, when that worker
is lost, assigned again; a worker for which there is none waits until every unit is applied. The clocks of
lost workers leave the minimum at once, and a worker that joins starts at the minimum.
"""

import json
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import torch

from paceline.checkpoints.snapshot import Snapshot
from paceline.core.clock import Clock, SystemClock
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank, Step, Version
from paceline.events.log import MemoryLog
from paceline.events.schema import ServerRow
from paceline.plan.plan import Plan
from paceline.strategies.port import ServerSide
from paceline.sync.admission import Admission, DynamicBounded, Held, slowest
from paceline.sync.assignment import FirstCome, FirstComeState
from paceline.transport.ports import Answer, Reply
from paceline.worker.evaluation import EvaluatedRow
from paceline.worker.replica import Replica
from paceline.worker.server.core import ParameterServer


class OrderKind(IntEnum):
    """Kinds of orders. The numbers are part of the protocol with the backup."""

    JOINED = 1
    PUSHED = 2
    PUSHED_AND_STOP = 3
    GONE = 4
    ABSENT = 5  # an expected worker did not join
    AGAIN = 7  # it has abandoned its obsolete share
    EVALUATED = 8  # no worker: the primary has evaluated the current parameters


@dataclass(frozen=True, slots=True)
class Order:
    kind: OrderKind
    rank: Rank
    number: int  # JOINED: the incarnation; PUSHED, AGAIN: the ticket
    at_ns: int  # the primary's time: rules and rows of both servers use it
    text: str = ""  # EVALUATED: the result as JSON


class RequestVerdict(IntEnum):
    """How a worker's request is handled."""

    ORDER = 1  # it is new
    REPEAT = 2  # it is known: the answer, if there is one, is given again
    UNKNOWN = 3  # not a member, or no longer one: it must join
    FENCED = 4  # this incarnation is over


@dataclass(slots=True)
class Member:
    incarnation: int
    ticket: int = 0  # ticket of the newest share assigned to it
    pushed: int = 0  # the newest ticket whose gradient was received or abandoned

    @property
    def is_computing(self) -> bool:
        return self.ticket > self.pushed


class OrderClock:
    """The time of the order that is carried out."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("orders take no time")


class ElasticServer(ParameterServer):
    def __init__(self, plan: Plan, replica: Replica, side: type[ServerSide]) -> None:
        assert plan.elastic is not None, "the run is elastic"
        self._times = OrderClock()
        self._rows = MemoryLog()
        super().__init__(plan, replica, side, log=self._rows, clock=self._times)
        self.expected = {Rank(rank) for rank in range(plan.elastic.workers)}  # have not joined yet
        self.members: dict[Rank, Member] = {}
        self.ended: dict[Rank, int] = {}  # the newest incarnation of each worker that is over
        self.tickets = 0
        self._idle: list[Rank] = []  # members without a share
        self._shares_left = FirstCome(plan.total_gradients)
        self._begin({rank: StepClock(0) for rank in self.expected}, self._shares_left)

    def _evaluation_clock(self) -> Clock:
        return SystemClock()  # how long an evaluation takes is no matter of orders

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def numel(self) -> int:
        """Number of elements that a worker pushes; bytes of compressed gradients."""
        return self._new_slots().gradients.numel()

    @property
    def dtype(self) -> torch.dtype:
        return self._new_slots().gradients.dtype

    @property
    def is_finished(self) -> bool:
        """Whether every share of the work is applied."""
        admission = self._admission
        return self._assignment.is_exhausted() and not admission.computing and not admission.held

    def weigh(self, kind: OrderKind, rank: Rank, incarnation: int, ticket: int) -> RequestVerdict:
        """Verdict on a worker's request; changes no state."""
        member = self.members.get(rank)
        if incarnation <= self.ended.get(rank, 0) or (member and incarnation < member.incarnation):
            return RequestVerdict.FENCED
        if kind is OrderKind.JOINED:
            is_known = member is not None and incarnation == member.incarnation
            return RequestVerdict.REPEAT if is_known else RequestVerdict.ORDER
        if member is None or incarnation != member.incarnation:
            return RequestVerdict.UNKNOWN
        is_told = kind is not OrderKind.AGAIN or rank in self._admission.abandoned
        if kind is OrderKind.GONE or (member.is_computing and ticket == member.ticket and is_told):
            return RequestVerdict.ORDER
        return RequestVerdict.REPEAT

    def repeat(self, rank: Rank) -> list[Reply]:
        """The answer that this member was given, if it has not been used."""
        if not self.members[rank].is_computing:
            return []
        return [Answer(rank, self._read[rank][0], self._doing[rank])]

    def parameters_of(self, rank: Rank) -> torch.Tensor:
        """Parameters last sent to this member."""
        return self._slots[rank].parameters

    def order(
        self, order: Order, gradient: torch.Tensor | None = None
    ) -> tuple[list[Reply], list[ServerRow | EvaluatedRow]]:
        """Carry it out; the replies, and the rows to record."""
        self._times.at_ns = order.at_ns
        rows: list[ServerRow | EvaluatedRow] = []
        if order.kind is OrderKind.EVALUATED:
            assert self.evaluations is not None, "an evaluation belongs to a run that is evaluated"
            entry = json.loads(order.text)
            rows.append(self.evaluations.row(entry))
            self.take_evaluation(entry)
            replies = self._settle([])
        else:
            replies = self._settle(self._apply_order(order, gradient))
        rows += self._rows.server
        self._rows.server = []
        return replies, rows

    def _apply_order(self, order: Order, gradient: torch.Tensor | None) -> list[Reply]:
        rank = order.rank
        match order.kind:
            case OrderKind.JOINED:
                return self._enter(rank, order.number)
            case OrderKind.PUSHED | OrderKind.PUSHED_AND_STOP:
                assert gradient is not None, "a push brings a gradient"
                self._slots[rank].gradients.copy_(gradient)
                self.members[rank].pushed = order.number
                return list(self.push(rank, wants_stop=order.kind is OrderKind.PUSHED_AND_STOP))
            case OrderKind.AGAIN:
                self.members[rank].pushed = order.number
                return list(self.again(rank))
            case OrderKind.GONE:
                self._drop(rank)
                return self._carry_out(self._admission.leave(rank))
            case OrderKind.ABSENT:
                self.expected.discard(rank)
                return self._carry_out(self._admission.leave(rank))
            case OrderKind.EVALUATED:
                return []

    def _enter(self, rank: Rank, incarnation: int) -> list[Reply]:
        if rank in self.members:
            self._drop(rank)
        self.expected.discard(rank)
        self.members[rank] = Member(incarnation)
        if rank not in self._slots:
            self.attach(rank, self._new_slots())
        return self._carry_out(self._admission.join(rank, self._minimum(rank)))

    def _minimum(self, rank: Rank) -> StepClock:
        """Clock at which a joining worker starts: it neither holds the others back nor is held back."""
        other_clocks = {other: clock for other, clock in self._admission.clocks.items() if other != rank}
        low = slowest(other_clocks)
        return self.clocks[rank] if low is None else low

    def _drop(self, rank: Rank) -> None:
        """This incarnation is over: its share is assigned again, also if its gradient waits unapplied."""
        self.ended[rank] = self.members.pop(rank).incarnation
        admission = self._admission
        if rank in admission.computing or rank in admission.held:
            held = admission.held.pop(rank, None)
            step = Step(admission.clocks[rank]) if held is None else held.index
            self._note("lost", rank, step, self.version)
            self._take_back(rank)
        admission.computing.discard(rank)
        admission.abandoned.discard(rank)  # its share went back when the others continued
        admission.clocks.pop(rank, None)
        admission.waiting = [other for other in admission.waiting if other != rank]
        self._idle = [other for other in self._idle if other != rank]

    def _hand_out(self, rank: Rank) -> list[Reply]:
        clock = self._admission.clocks[rank]
        position = self._assignment.next(rank, clock)
        if position is None:
            # It holds no other worker back meanwhile; a work unit may yet be given back.
            self._idle.append(rank)
            return self._carry_out(self._admission.leave(rank))
        self.tickets += 1
        self.members[rank].ticket = self.tickets
        return [self.answer(rank, Step(clock), position)]

    def _settle(self, replies: list[Reply]) -> list[Reply]:
        """Idle workers get the work units that were given back, or are released when all are applied."""
        while self._idle and not self._assignment.is_exhausted():
            rank = self._idle.pop(0)
            replies += self._carry_out(self._admission.join(rank, self._minimum(rank)))
        if self.is_finished:
            replies += [self._end(rank) for rank in self._idle]
            for rank in self._idle:
                del self.members[rank]
            self._idle = []
        return replies

    def _begin(self, clocks: dict[Rank, StepClock], shares: FirstCome) -> None:
        self._admission = Admission(self._side.rule(self._plan), clocks)
        self._assignment = self._shares_left = shares

    def restore(self, saved: Snapshot) -> None:
        """Restore from a checkpoint, without members and assigned work units."""
        super().restore(saved)
        done = self.applied.copy()
        self._begin(
            {rank: self.clocks[rank] for rank in self.expected}, FirstCome(self._plan.total_gradients, done)
        )
        self._stop_again()

    def whole(self) -> Snapshot:
        """Everything that another server needs to continue from here."""
        saved = self.snapshot()
        admission = self._admission
        shares = self._shares_left
        tensors = dict(saved.tensors)
        for rank in self.members:
            tensors[f"read.{rank}"] = self._slots[rank].parameters
        for rank in admission.held:
            tensors[f"pushed.{rank}"] = self._slots[rank].gradients
        rule = admission.rule
        facts: dict[str, Any] = {  # Any: JSON
            "members": [[rank, asdict(member)] for rank, member in self.members.items()],
            "ended": [[rank, incarnation] for rank, incarnation in self.ended.items()],
            "expected": sorted(self.expected),
            "tickets": self.tickets,
            "idle": self._idle,
            "doing": [[rank, position] for rank, position in self._doing.items()],
            "read": [[rank, *seen] for rank, seen in self._read.items()],
            "active": [[rank, clock] for rank, clock in admission.clocks.items()],
            "held": [[rank, held.index] for rank, held in admission.held.items()],
            "waiting": admission.waiting,
            "computing": sorted(admission.computing),
            "abandoned": sorted(admission.abandoned),
            "shares": list(shares.state()),
            "controller": asdict(rule.controller) if isinstance(rule, DynamicBounded) else None,
        }
        return Snapshot(tensors, {**saved.facts, **facts})

    def take_whole(self, saved: Snapshot) -> None:
        facts = saved.facts
        self.restore(saved)
        self.members = {Rank(rank): Member(**fields) for rank, fields in facts["members"]}
        self.ended = {Rank(rank): incarnation for rank, incarnation in facts["ended"]}
        self.expected = {Rank(rank) for rank in facts["expected"]}
        self.tickets = facts["tickets"]
        self._idle = [Rank(rank) for rank in facts["idle"]]
        self._doing = {Rank(rank): position for rank, position in facts["doing"]}
        self._read = {Rank(rank): (Version(version), at_ns) for rank, version, at_ns in facts["read"]}
        self._take_admission(facts)
        self._assignment = self._shares_left = FirstCome.from_state(FirstComeState(*facts["shares"]))
        self._admission.is_exhausted = self._assignment.is_exhausted()
        for rank in self.members:
            slots = self._new_slots()
            slots.parameters.copy_(saved.tensors[f"read.{rank}"])
            if f"pushed.{rank}" in saved.tensors:
                slots.gradients.copy_(saved.tensors[f"pushed.{rank}"])
            self.attach(rank, slots)

    def _take_admission(self, facts: dict[str, Any]) -> None:  # Any: JSON
        admission = self._admission
        admission.clocks = {Rank(rank): StepClock(clock) for rank, clock in facts["active"]}
        admission.held = {Rank(rank): Held(Rank(rank), Step(index)) for rank, index in facts["held"]}
        admission.waiting = [Rank(rank) for rank in facts["waiting"]]
        admission.computing = {Rank(rank) for rank in facts["computing"]}
        admission.abandoned = {Rank(rank) for rank in facts["abandoned"]}
        if isinstance(admission.rule, DynamicBounded):
            for name, values in facts["controller"].items():
                setattr(admission.rule.controller, name, values)
