"""A whole cluster from one seed: nodes, disks, a network that loses things, clients, and faults.

One event at a time is drawn: a message arrives, a node's clock ticks, a client
asks, something breaks or heals. A node's effects (write, sync, send, apply) are
carried out one by one, and it may crash between any two.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from tests.raft_simulation.disk import Compacted, Disk, Installed
from tests.raft_simulation.invariants import Invariants, ViolationError
from tests.raft_simulation.linearizability import NEVER, Operation, is_linearizable

from paceline.coordinator.raft.core import Raft, Timing
from paceline.coordinator.raft.door import why_impossible, why_malformed
from paceline.coordinator.raft.log import empty_snapshot
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    Index,
    Membership,
    Message,
    NodeId,
    Ready,
    Term,
)

KEYS = ("a", "b", "c")
MOST_OPERATIONS = 60  # of a history, so that checking it stays quick
MOST_OPEN = 12  # writes without an answer; each doubles what a checker must try
KEEP_ENTRIES = 20  # a log longer than this may be compacted


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad is it? Drawn once for each seed."""

    nodes: int
    drop: float
    duplicate: float
    crash: float  # per event
    partition: float
    change: float  # membership changes, transfers and compactions, per event
    election: int  # ticks; few of them make many elections
    slow_disk: float  # how often a sync takes a while

    @classmethod
    def drawn(cls, dice: random.Random) -> "Weather":
        return cls(
            nodes=dice.choice((3, 3, 5)),
            drop=dice.choice((0.0, 0.02, 0.1, 0.25)),
            duplicate=dice.choice((0.0, 0.05)),
            crash=dice.choice((0.0, 0.002, 0.01, 0.03)),
            partition=dice.choice((0.0, 0.004, 0.015)),
            change=dice.choice((0.0, 0.005, 0.03)),
            election=dice.choice((10, 5, 3)),
            slow_disk=dice.choice((0.0, 0.2, 0.7)),
        )

    def cleared(self) -> "Weather":
        """The same cluster on a fine day."""
        return replace(
            self, drop=0.0, duplicate=0.0, crash=0.0, partition=0.0, change=0.0, election=10, slow_disk=0.0
        )


@dataclass(slots=True)
class Node:
    id: NodeId
    disk: Disk
    pace: float  # how fast its clock runs
    raft: Raft | None = None  # None: it is down
    state: dict[str, str] = field(default_factory=dict)
    applied: Index = Index(0)  # noqa: RUF009 - a plain number
    was_leader_in: Term = Term(0)  # noqa: RUF009 - a plain number
    waiting: dict[tuple[Index, Term], Operation] = field(default_factory=dict)
    reading: dict[int, tuple[Operation, int]] = field(default_factory=dict)
    due_reads: list[tuple[int, Index]] = field(default_factory=list)
    syncing: list[Ready] = field(default_factory=list)  # written, but the disk has not said so yet
    ticks_alone: int = 0  # since it was cut off from everybody

    @property
    def raft_up(self) -> Raft:
        assert self.raft is not None, "it is up"
        return self.raft


class World:
    def __init__(
        self, seed: int, *, make: Callable[..., Raft] = Raft, weather: Weather | None = None
    ) -> None:
        self.dice = random.Random(seed)
        self.weather = weather or Weather.drawn(self.dice)
        self._make = make
        self.checks = Invariants()
        self.now = 0
        self.history: list[Operation] = []
        self.in_flight: list[Message] = []
        self.cut: set[tuple[NodeId, NodeId]] = set()  # (from, to) that loses everything
        self._next_read = 0
        members = Membership(frozenset(NodeId(n) for n in range(1, self.weather.nodes + 1)))
        spare = NodeId(self.weather.nodes + 1)
        self.nodes = {
            n: Node(n, Disk(empty_snapshot(members)), self.dice.choice((0.15, 0.7, 1.0, 1.0, 1.4)))
            for n in (*sorted(members.voters), spare)
        }
        for node in self.nodes.values():
            self._start(node)

    # Events.

    def run(self, events: int) -> None:
        for _ in range(events):
            self.now += 1
            self.event()

    def event(self) -> None:
        drawn, weather = self.dice.random(), self.weather
        if drawn < weather.crash:
            self._crash_or_restart()
        elif drawn < weather.crash + weather.partition:
            self._cut_or_heal()
        elif drawn < weather.crash + weather.partition + weather.change:
            self._change_something()
        elif drawn < 0.10:
            self._ask()
        elif drawn < 0.15:
            self._sync_one()
        elif self.in_flight and drawn < 0.78:
            self._deliver()
        else:
            self._tick()

    def heal(self, events: int = 3000) -> None:
        """Everything works again: the cluster must come to one mind and answer."""
        self.cut.clear()
        self.weather = self.weather.cleared()
        for node in self.nodes.values():
            if node.raft is None:
                self._start(node)
            node.raft_up.timing = Timing()
            self._finish_syncing(node)
        last = self.checks.acknowledged
        for _ in range(events):
            self.now += 1
            self.event()
            if self._has_settled(last):
                return
        raise ViolationError("the cluster did not come to one mind after everything was healed")

    def check_history(self) -> None:
        if not is_linearizable(self.history):
            raise ViolationError("the clients' history is not linearizable")

    def _has_settled(self, last: int) -> bool:
        leader = self._leader()
        if leader is None or leader.raft is None or leader.raft.log.commit < last:
            return False
        commit = leader.raft.log.commit
        members = [self.nodes[n] for n in leader.raft.membership.everybody]
        return all(m.applied >= commit for m in members) and leader.raft.log.term(commit) == leader.raft.term

    def _tick(self) -> None:
        node = self.nodes[self.dice.choice(list(self.nodes))]
        if node.raft is not None and self.dice.random() < node.pace:
            before = node.raft.term
            node.raft.tick()
            self._check_alone(node, before)
            self._carry_out(node)

    def _check_alone(self, node: Node, before: Term) -> None:
        """Whoever hears of nobody neither raises its term nor leads for long (9.6, 6.2)."""
        raft = node.raft_up
        others = raft.membership.voters - {node.id}
        if not others or not all((other, node.id) in self.cut for other in others):
            node.ticks_alone = 0
            return
        node.ticks_alone += 1
        patience = 4 * raft.timing.election
        if node.ticks_alone > patience and raft.term > before:
            raise ViolationError(f"node {node.id} hears of nobody and raised its term to {raft.term}")
        if node.ticks_alone > patience and raft.is_leader:
            raise ViolationError(f"node {node.id} hears of nobody and still believes that it leads")

    def _sync_one(self) -> None:
        slow = [node for node in self.nodes.values() if node.syncing]
        if slow:
            self._finish_syncing(self.dice.choice(slow))

    def _deliver(self) -> None:
        # Mostly in order, sometimes not: a message may be overtaken by any number of others.
        last = len(self.in_flight) - 1
        place = self.dice.randrange(last + 1) if self.dice.random() < 0.3 else 0
        message = self.in_flight[place]
        if self.dice.random() >= self.weather.duplicate:
            del self.in_flight[place]
        is_lost = (message.sender, message.to) in self.cut or self.dice.random() < self.weather.drop
        node = self.nodes[message.to]
        if not is_lost and node.raft is not None:
            node.ticks_alone = 0
            if (why := why_malformed(message) or why_impossible(node.raft, message)) is not None:
                raise ViolationError(f"node {message.sender} said what no node should say: {why}")
            node.raft.step(message)
            self._carry_out(node)

    def _ask(self) -> None:
        """A client asks whichever node it believes to be the leader."""
        believed = [n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]
        if not believed or len(self.history) >= MOST_OPERATIONS or self._open_writes() > MOST_OPEN:
            return
        node = self.dice.choice(believed)
        assert node.raft is not None, "only nodes that are up are believed"
        key = self.dice.choice(KEYS)
        if self.dice.random() < 0.6:
            operation = Operation(key, True, f"{self.now}", self.now)
            place = node.raft.propose(f"{key}={operation.value}".encode())
            if place is not None:
                self.history.append(operation)
                node.waiting[place] = operation
        else:
            operation = Operation(key, False, "", self.now)
            self._next_read += 1
            if node.raft.read(self._next_read):
                self.history.append(operation)
                node.reading[self._next_read] = operation, self.checks.acknowledged
        self._carry_out(node)

    def _open_writes(self) -> int:
        return sum(o.is_write and o.answered == NEVER for o in self.history)

    # Faults.

    def _crash_or_restart(self) -> None:
        # A crash hurts most where the disk has not yet said that it is done.
        writing = [node for node in self.nodes.values() if node.syncing]
        is_cruel = bool(writing) and self.dice.random() < 0.6
        node = self.dice.choice(writing if is_cruel else list(self.nodes.values()))
        if node.raft is None:
            self._start(node)
        else:
            self._crash(node)

    def _crash(self, node: Node) -> None:
        node.disk.crash(self.dice.randrange)
        node.raft = None
        node.waiting.clear()
        node.reading.clear()
        node.due_reads.clear()
        node.syncing.clear()
        node.ticks_alone = 0

    def _start(self, node: Node) -> None:
        hard_state, log = node.disk.read()
        node.raft = self._make(node.id, hard_state, log, dice=self.dice.randrange, timing=self._timing())
        node.state, node.applied = _decoded(log.snapshot.data), log.snapshot.index
        node.was_leader_in = Term(0)

    def _timing(self) -> Timing:
        return Timing(election=self.weather.election, heartbeat=max(1, self.weather.election // 5))

    def _cut_or_heal(self) -> None:
        if self.cut and self.dice.random() < 0.6:
            self.cut.clear()
            return
        ids = list(self.nodes)
        leader = self._leader()
        if leader is not None and self.dice.random() < 0.4:
            island = {leader.id}
        else:
            island = set(self.dice.sample(ids, self.dice.randrange(1, len(ids))))
        one_way = self.dice.random() < 0.3
        for a in island:
            for b in set(ids) - island:
                self.cut.add((a, b))
                if not one_way:
                    self.cut.add((b, a))

    def _change_something(self) -> None:
        leader = self._leader()
        if leader is None or leader.raft is None:
            return
        drawn = self.dice.random()
        if drawn < 0.4:
            self._compact_one()
        elif drawn < 0.6:
            leader.raft.transfer(self.dice.choice(sorted(leader.raft.membership.voters)))
        else:
            self._change_membership(leader.raft)
        if leader.raft is not None:
            self._carry_out(leader)

    def _compact_one(self) -> None:
        node = self.nodes[self.dice.choice(list(self.nodes))]
        raft = node.raft
        if raft is None or raft.log.last_index - raft.log.snapshot.index < KEEP_ENTRIES:
            return
        index = Index(node.applied - self.dice.randrange(3))
        if index > raft.log.snapshot.index and index == node.applied:
            node.disk.write(Compacted(raft.compact(index, _encoded(node.state))))
            node.disk.sync()

    def _change_membership(self, raft: Raft) -> None:
        now = raft.membership
        node = self.dice.choice(list(self.nodes))
        if node in now.learners:
            change = Membership(now.voters | {node}, now.learners - {node})
        elif node in now.voters:
            change = Membership(now.voters - {node}, now.learners)
            if len(change.voters) < 2:
                return
        else:
            change = Membership(now.voters, now.learners | {node})
        raft.change(change)

    def _leader(self) -> Node | None:
        """The one of the newest term."""
        leaders = [n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]
        return max(leaders, key=lambda n: n.raft.term if n.raft is not None else 0, default=None)

    # A node's effects, one by one.

    def _carry_out(self, node: Node) -> None:
        """Send what may leave early and write; then sync and go on, at once or when the disk is done."""
        raft = node.raft_up
        crash_after = self.dice.randrange(12) if self.dice.random() < 4 * self.weather.crash else None
        while True:
            ready = raft.ready()
            self._check(node, raft, ready)
            effects = [*self._before_sync(node, ready)]
            is_slow = ready.must_persist and self.dice.random() < self.weather.slow_disk
            if not (is_slow or node.syncing):
                effects += self._after_sync(node, ready)
            for number, effect in enumerate(effects):
                effect()
                if number == crash_after:
                    self._crash(node)
                    return
            if is_slow or node.syncing:
                node.syncing.append(ready)  # what follows must wait for what came before
                return
            if not (ready.must_persist or ready.committed or ready.reads):
                return

    def _finish_syncing(self, node: Node) -> None:
        waiting, node.syncing = node.syncing, []
        for ready in waiting:
            for effect in self._after_sync(node, ready):
                effect()
        if waiting:
            self._carry_out(node)

    def _before_sync(self, node: Node, ready: Ready) -> Iterator[Callable[[], None]]:
        yield lambda: self.in_flight.extend(ready.early)
        if ready.hard_state is not None:
            yield partial(node.disk.write, ready.hard_state)
        if ready.snapshot is not None:
            yield partial(node.disk.write, Installed(ready.snapshot))
        if ready.entries:
            yield partial(node.disk.write, tuple(ready.entries))

    def _after_sync(self, node: Node, ready: Ready) -> Iterator[Callable[[], None]]:
        raft = node.raft_up
        if ready.must_persist:
            yield node.disk.sync
        if ready.snapshot is not None:
            yield lambda: self._install(node, ready)
        if ready.entries:
            last = ready.entries[-1]
            yield partial(raft.persisted, last.index, last.term)
        for message in ready.messages:
            yield partial(self.in_flight.append, message)
        for entry in ready.committed:
            yield partial(self._apply, node, entry)
        yield lambda: self._answer_reads(node, ready)

    def _install(self, node: Node, ready: Ready) -> None:
        assert ready.snapshot is not None, "asked only when there is one"
        node.state, node.applied = _decoded(ready.snapshot.data), ready.snapshot.index

    def _apply(self, node: Node, entry: Entry) -> None:
        self.checks.check_applied(node.id, entry)
        if entry.index != node.applied + 1:
            raise ViolationError(f"node {node.id} applied {entry.index} after {node.applied}")
        node.applied = entry.index
        if entry.kind is EntryKind.COMMAND:
            key, _, value = entry.data.decode().partition("=")
            node.state[key] = value
        operation = node.waiting.pop((entry.index, entry.term), None)
        if operation is not None:
            operation.answered = self.now
            self.checks.acknowledged = max(self.checks.acknowledged, entry.index)

    def _answer_reads(self, node: Node, ready: Ready) -> None:
        node.due_reads += ready.reads
        for lost in ready.lost_reads:
            node.reading.pop(lost, None)
        late = []
        for id_, index in node.due_reads:
            if node.applied < index:
                late.append((id_, index))
                continue
            operation, floor = node.reading.pop(id_)
            self.checks.check_read(index, floor)
            operation.value, operation.answered = node.state.get(operation.key, ""), self.now
        node.due_reads = late

    def _check(self, node: Node, raft: Raft, ready: Ready) -> None:
        self.checks.check_entries(ready.entries, raft)
        if raft.is_leader:
            self.checks.check_leader(raft)
            if node.was_leader_in != raft.term:
                node.was_leader_in = raft.term
                self.checks.check_new_leader(raft)


def _encoded(state: dict[str, str]) -> bytes:
    return json.dumps(state, sort_keys=True).encode()


def _decoded(data: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(data) if data else {}
    return found
