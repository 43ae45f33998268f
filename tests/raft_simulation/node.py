"""Simulated node: carries out the output of its Raft core (write, sync, send, apply), and may crash between.

The order is the product's: early messages, the disk, then everything that the
disk must persist first. A slow disk lets other things happen in between.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.raft_simulation.disk import PowerLossError, VirtualFiles
from tests.raft_simulation.invariants import Invariants, ViolationError, apply
from tests.raft_simulation.linearizability import Operation
from tests.raft_simulation.network import Network
from tests.raft_simulation.weather import Weather

from paceline.coordinator.raft.core import Raft, Timing
from paceline.coordinator.raft.types import (
    NO_TERM,
    NOWHERE,
    Entry,
    EntryKind,
    Index,
    Membership,
    Message,
    NodeId,
    Ready,
    Term,
)
from paceline.coordinator.server.storage import Storage

KEEP_ENTRIES = 20  # a log longer than this may be compacted


@dataclass(slots=True)
class Surroundings:
    """What all nodes share."""

    rng: random.Random
    weather: Weather
    network: Network
    checks: Invariants
    first: Membership
    make: Callable[..., Raft]
    now: int = 0
    crashes: int = 0
    torn: int = 0  # crashes in the middle of a write, as found at the next start
    up: dict[NodeId, Raft] = field(default_factory=dict)

    def leaders(self) -> list[Raft]:
        return [raft for raft in self.up.values() if raft.is_leader]


class Node:
    def __init__(self, id_: NodeId, around: Surroundings) -> None:
        self.id, self._around = id_, around
        self.checks = around.checks
        self.pace = around.rng.choice(around.weather.paces)  # how fast its clock runs
        self.slowness = 1.0  # less than 1: something else has the processor
        self.files = VirtualFiles(around.rng)
        self.raft: Raft | None = None  # None: it is down
        self.state: dict[str, str] = {}
        self.applied: Index = NOWHERE
        self.led: Term = NO_TERM  # the last term that it was seen to lead in
        self.waiting: dict[tuple[Index, Term], Operation] = {}
        self.reading: dict[int, tuple[Operation, Index]] = {}
        self.syncing: list[Ready] = []  # handed to the disk, which is not done yet
        self.ticks_alone = 0  # since it was cut off from all others
        self._due_reads: list[tuple[int, Index]] = []

    @property
    def raft_up(self) -> Raft:
        assert self.raft is not None, "it is up"
        return self.raft

    # Up and down.

    def start(self) -> None:
        around = self._around
        self.files.fuse = None
        self.storage = Storage(Path(f"node-{self.id}"), self.id, files=self.files)
        loaded = self.storage.load(around.first)
        around.torn += loaded.torn_bytes > 0 or loaded.is_unfinished
        self._written = loaded.hard_state
        self.raft = around.make(
            self.id,
            loaded.hard_state,
            loaded.log(),
            randrange=around.rng.randrange,
            timing=timing(around.weather),
        )
        around.up[self.id] = self.raft
        self.state, self.applied = decoded(loaded.snapshot.data), loaded.snapshot.index
        self.checks.restarted(self.raft)

    def crash(self) -> None:
        """The disk may have done any part of what it was given."""
        rng = self._around.rng
        whole = rng.randrange(len(self.syncing) + 1)
        try:
            for ready in self.syncing[:whole]:
                self._save(ready)
            for ready in self.syncing[whole : whole + 1]:
                self.files.fuse = rng.randrange(_about_bytes(ready))
                self._save(ready)
        except PowerLossError:
            pass  # that is what was wanted
        self._forget()

    def _forget(self) -> None:
        self._around.crashes += 1
        self.raft = None
        self._around.up.pop(self.id, None)
        self.waiting.clear()
        self.reading.clear()
        self.syncing.clear()
        self._due_reads.clear()
        self.ticks_alone, self.led = 0, NO_TERM

    # Effects, one by one.

    def carry_out(self) -> None:
        """Send what may leave early and write; then go on, at once or when the disk is done."""
        around, raft = self._around, self.raft_up
        weather, rng = around.weather, around.rng
        # After the early messages and before the disk is where a crash hurts most.
        crash_after = rng.choice((0, 0, 0, 1, 2, 3, 5, 8)) if rng.random() < 2 * weather.crash else None
        while True:
            ready = raft.ready()
            self.checks.check(raft, ready.entries, around.leaders())
            is_slow = bool(self.syncing) or (ready.must_persist and rng.random() < weather.slow_disk)
            self._send(ready.early)
            if is_slow:
                self.syncing.append(ready)  # what follows must wait for what came before
            if crash_after == 0:
                self.syncing = self.syncing or [ready]  # it was being written
                self.crash()
            if is_slow or self.raft is None:
                return
            for number, effect in enumerate(self._effects(ready), start=1):
                effect()
                if number == crash_after:
                    self.crash()
                    return
            if not (ready.must_persist or ready.committed or ready.reads):
                return

    def finish_syncing(self) -> None:
        waiting, self.syncing = self.syncing, []
        for ready in waiting:
            for effect in self._effects(ready):
                effect()
        if waiting:
            self.carry_out()

    def _effects(self, ready: Ready) -> Iterator[Callable[[], None]]:
        raft = self.raft_up
        if ready.must_persist:
            yield lambda: self._save(ready)
        if ready.snapshot is not None:
            yield lambda: self._install(ready)
        if ready.entries:
            last = ready.entries[-1]
            yield partial(raft.persisted, last.index, last.term)
        for message in ready.messages:
            yield partial(self._send, (message,))
        for entry in ready.committed:
            yield partial(self._apply, entry)
        yield lambda: self._answer_reads(ready)

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.checks.check_sent(message)
        self._around.network.send(messages)

    def _save(self, ready: Ready) -> None:
        hard_state = ready.hard_state or self._written
        if ready.snapshot is not None:
            self.storage.save_snapshot(ready.snapshot, hard_state, ready.entries)
        else:
            self.storage.save(ready.hard_state, ready.entries)
        self._written = hard_state
        self.checks.check_entries(self.raft_up, ready.entries, are_seen=True)

    def _install(self, ready: Ready) -> None:
        assert ready.snapshot is not None, "asked only when there is one"
        self.checks.check_snapshot(ready.snapshot)
        self.state, self.applied = decoded(ready.snapshot.data), ready.snapshot.index

    def _apply(self, entry: Entry) -> None:
        self.checks.check_applied(self.id, entry)
        if entry.index != self.applied + 1:
            raise ViolationError(f"node {self.id} applied {entry.index} after {self.applied}")
        self.applied = entry.index
        if entry.kind is EntryKind.COMMAND:
            apply(self.state, entry)
        operation = self.waiting.pop((entry.index, entry.term), None)
        if operation is not None:
            operation.answered = self._around.now
            self.checks.acknowledge(entry.index, entry.term)

    def _answer_reads(self, ready: Ready) -> None:
        self._due_reads += ready.reads
        for lost in ready.lost_reads:
            self.reading.pop(lost, None)
        late = []
        for id_, index in self._due_reads:
            if self.applied < index:
                late.append((id_, index))
                continue
            operation, floor = self.reading.pop(id_)
            self.checks.check_read(index, floor)
            operation.value, operation.answered = self.state.get(operation.key, ""), self._around.now
        self._due_reads = late

    def compact(self) -> None:
        """A snapshot takes the place of the log, unless the power fails on the way."""
        raft, rng = self.raft_up, self._around.rng
        if self.syncing or self.applied - raft.log.snapshot.index < rng.randrange(1, KEEP_ENTRIES):
            return
        snapshot = raft.compact(self.applied, encoded(self.state))
        self.checks.check_snapshot(snapshot)
        kept = raft.log.between(Index(snapshot.index + 1), raft.log.stable)
        if rng.random() < 4 * self._around.weather.crash:
            self.files.fuse = rng.randrange(400)
        try:
            self.storage.save_snapshot(snapshot, self._written, kept)
        except PowerLossError:
            self._forget()
        self.files.fuse = None


def timing(weather: Weather) -> Timing:
    beat = max(1, weather.election // 5)
    return Timing(election=weather.election, heartbeat=beat, append_bytes=weather.append_bytes)


def encoded(state: dict[str, str]) -> bytes:
    return json.dumps(state, sort_keys=True).encode()


def decoded(data: bytes) -> dict[str, str]:
    result: dict[str, str] = json.loads(data) if data else {}
    return result


def _about_bytes(ready: Ready) -> int:
    """As many as its records have, more or less: the power fails somewhere before that."""
    extra = 0 if ready.snapshot is None else 300 + len(ready.snapshot.data)
    return 30 + extra + sum(30 + len(entry.data) for entry in ready.entries)
