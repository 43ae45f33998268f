"""The event loop of a node: collect input, step Raft, persist, send, apply, reply.

One task does this, in that order, so nothing in here needs a lock. More input arrives while the
disk is busy, and the next write takes all of it: many commands share one fsync. Nothing is
acknowledged before it is on disk, nothing applied before it is committed, and no request is
answered before its entry is applied.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.core import Raft, RandRange, Timing
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    Message,
    NodeId,
    Ready,
    Term,
)
from paceline.coordinator.raft.validate import why_impossible
from paceline.coordinator.server.change_feed import ChangeFeed
from paceline.coordinator.server.latency import LatencyMetrics
from paceline.coordinator.server.storage import Storage, StoredState
from paceline.coordinator.state import queries
from paceline.coordinator.state.machine import CoordinatorState
from paceline.core.clock import monotonic_s, unix_now_s

MAX_TICKS = 3  # after a gap: a process that was frozen must not conclude that all others were silent
MAX_WAITING = 20_000  # commands without an answer

Send = Callable[[Iterable[Message]], None]
ReportInvalid = Callable[[str], None]  # about a message that no correct node can send
LogPosition = tuple[Index, Term]
T = TypeVar("T")


class NotLeaderError(Exception):
    """Another node leads, or none does, or leadership was lost before the outcome was known."""


class TooBusyError(Exception):
    """More commands wait for an answer than a node keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Timing of a node. With the defaults a lost leader is replaced within 200 to 450 ms."""

    tick_s: float = 0.02
    election_ticks: int = 10
    heartbeat_ticks: int = 2
    snapshot_every: int = 20_000  # entries
    snapshot_bytes: int = 64 << 20  # or of entries with this total size: they are in memory, too

    @property
    def timing(self) -> Timing:
        return Timing(election=self.election_ticks, heartbeat=self.heartbeat_ticks)


@dataclass(slots=True)
class _Inbox:
    """Input since the last round of the loop."""

    messages: list[tuple[Message, ReportInvalid]] = field(default_factory=list)
    broken: list[NodeId] = field(default_factory=list)  # nodes whose connection to this one has ended
    commands: list[tuple[pb.Command, "asyncio.Future[pb.Outcome]"]] = field(default_factory=list)
    reads: list["asyncio.Future[None]"] = field(default_factory=list)
    changes: list[tuple[Membership, "asyncio.Future[None]"]] = field(default_factory=list)
    handovers: list[tuple[NodeId, "asyncio.Future[None]"]] = field(default_factory=list)
    snapshots: list["asyncio.Future[None]"] = field(default_factory=list)


class Node:
    def __init__(
        self,
        me: NodeId,
        storage: Storage,
        stored: StoredState,
        *,
        send: Send,
        randrange: RandRange,
        pace: Pace,
    ) -> None:
        self.me = me
        self.pace = pace
        self.feed = ChangeFeed()
        self.state = CoordinatorState.restore(stored.snapshot.data)
        self.raft = Raft(me, stored.hard_state, stored.log(), randrange=randrange, timing=pace.timing)
        self.applied = stored.snapshot.index
        self._applied_bytes = 0  # since the snapshot
        self.on_change: Callable[[], None] = lambda: None  # role, leader, term, membership or addresses
        self._storage = storage
        self._send = send
        self._hard_state = stored.hard_state
        self.latency = LatencyMetrics(me, stored.hard_state.term)
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coordinator-disk")
        self._wake = asyncio.Event()
        self._inbox = _Inbox()
        self._answers: dict[LogPosition, asyncio.Future[pb.Outcome]] = {}
        self._changing: dict[LogPosition, asyncio.Future[None]] = {}
        self._reading: dict[int, asyncio.Future[None]] = {}
        self._reads_due: list[tuple[int, Index]] = []  # reads, and the index that must be applied first
        self._next_read = 0
        self._ticked_s = monotonic_s()
        self._elapsed_s = 0.0  # excludes freezes: the clients may have been frozen too
        self._elapsed_term = Term(0)
        self.feed.restart(self.applied)
        self._published = self._public_state()

    # Called by the services.

    def deliver(self, message: Message, report_invalid: ReportInvalid) -> None:
        self._inbox.messages.append((message, report_invalid))
        self._wake.set()

    def lost_touch(self, other: NodeId) -> None:
        self._inbox.broken.append(other)
        self._wake.set()

    async def propose(self, command: pb.Command) -> pb.Outcome:
        """The outcome, once the command is applied here. NotLeaderError: it may or may not be applied."""
        return await self.submit(command)

    def submit(self, command: pb.Command) -> "asyncio.Future[pb.Outcome]":
        """The same without waiting, for pipelined callers."""
        if not self.raft.is_leader:
            raise NotLeaderError
        if len(self._answers) + len(self._inbox.commands) > MAX_WAITING:
            self.latency.proposals_failed += 1
            raise TooBusyError
        answer: asyncio.Future[pb.Outcome] = self._new_future()
        self._inbox.commands.append((command, answer))
        return answer

    async def agree(self) -> None:
        """Wait until everything that was committed before this call is applied here (6.4)."""
        if not self.raft.is_leader:
            raise NotLeaderError
        read: asyncio.Future[None] = self._new_future()
        self._inbox.reads.append(read)
        await read

    async def change(self, membership: Membership) -> None:
        """Change the membership and wait for the commit; NotLeaderError also during another change."""
        done: asyncio.Future[None] = self._new_future()
        self._inbox.changes.append((membership, done))
        await done

    async def hand_over(self, to: NodeId) -> None:
        """Wait until the transfer has started: the other node leads soon after, or this one continues."""
        accepted: asyncio.Future[None] = self._new_future()
        self._inbox.handovers.append((to, accepted))
        await accepted

    async def snapshot(self) -> None:
        taken: asyncio.Future[None] = self._new_future()
        self._inbox.snapshots.append(taken)
        await taken

    # The loop.

    async def run(self) -> None:
        """Run until cancelled, or until a StorageError: a node must not confirm data that it lost."""
        ticker = asyncio.create_task(self._wake_every_tick())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                inbox = self._inbox
                self._inbox = _Inbox()
                self._process(inbox)
                while await self._advance(self.raft.ready()):
                    pass
                await self._compact(inbox.snapshots)
                self._publish_changes()
        finally:
            ticker.cancel()
            self._fail_waiting()
            self._disk.shutdown(wait=True)

    async def _wake_every_tick(self) -> None:
        while True:
            await asyncio.sleep(self.pace.tick_s)
            self._wake.set()

    def _process(self, inbox: _Inbox) -> None:
        for message, report_invalid in inbox.messages:
            if (why := why_impossible(self.raft, message)) is None:
                self.latency.heard(message)
                self.raft.step(message)
            else:
                report_invalid(why)
        for other in inbox.broken:
            self.raft.lost_touch(other)
            self.latency.lost_touch(other)
        self._tick()
        for command, answer in inbox.commands:
            command.at_ms = int(unix_now_s() * 1000)
            command.elapsed_ms = self._take_elapsed_ms()
            _register(self._answers, self.raft.propose(command.SerializeToString()), answer)
        if inbox.commands:  # all were taken in, or none
            is_taken = self.raft.is_leader and not self.raft.is_handing_over
            self.latency.proposed(self.raft.log.last_index, len(inbox.commands), is_taken=is_taken)
        for read in inbox.reads:
            self._next_read += 1
            if self.raft.read(self._next_read):
                self._reading[self._next_read] = read
            else:
                _fail(read, NotLeaderError())
        for membership, done in inbox.changes:
            _register(self._changing, self.raft.change(membership), done)
        for to, accepted in inbox.handovers:
            if self.raft.transfer(to):
                _answer(accepted, None)
            else:
                _fail(accepted, NotLeaderError())

    def _tick(self) -> None:
        now_s = monotonic_s()
        missed = int((now_s - self._ticked_s) / self.pace.tick_s)
        self._ticked_s = now_s if missed > MAX_TICKS else self._ticked_s + missed * self.pace.tick_s
        for _ in range(min(missed, MAX_TICKS)):
            self.raft.tick()
        self._elapsed_s += min(missed, MAX_TICKS) * self.pace.tick_s

    def _take_elapsed_ms(self) -> int:
        """Running time since the previous command of this term, or since the start of leadership."""
        if self._elapsed_term != self.raft.term:
            self._elapsed_term = self.raft.term
            self._elapsed_s = 0.0
        elapsed_ms = int(self._elapsed_s * 1000)
        self._elapsed_s -= elapsed_ms / 1000
        return elapsed_ms

    async def _advance(self, ready: Ready) -> bool:
        """Whether there was anything to do: then there may be more."""
        self._send(ready.early)
        self.latency.sent(ready.early)
        self.latency.stood(ready.hard_state)
        if ready.must_persist:
            await self._persist(ready)
        self._send(ready.messages)
        for entry in ready.committed:
            self._apply(entry)
        self.latency.applied(self.applied)
        self._reads_due += ready.reads
        for id in ready.lost_reads:
            _fail(self._reading.pop(id), NotLeaderError())
        self._serve_reads()
        return ready.must_persist or bool(ready.messages or ready.committed or ready.reads)

    async def _persist(self, ready: Ready) -> None:
        loop = asyncio.get_running_loop()
        if ready.hard_state is not None:
            self._hard_state = ready.hard_state
        if ready.snapshot is None:
            records = (ready.hard_state, ready.entries)
            if ready.early:  # they travel while our disk writes
                await loop.run_in_executor(self._disk, self._save, *records)
            else:  # no message waits for the write: a thread would only cost time
                self._save(*records)
        else:
            whole = (ready.snapshot, self._hard_state, ready.entries)
            await loop.run_in_executor(self._disk, self._storage.save_snapshot, *whole)
            self.state = CoordinatorState.restore(ready.snapshot.data)
            self.applied = ready.snapshot.index
            self._applied_bytes = 0
            self.feed.restart(self.applied)
        if ready.entries:
            self.raft.persisted(ready.entries[-1].index, ready.entries[-1].term)

    def _save(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        began_s = monotonic_s()
        self._storage.save(hard_state, entries)
        self.latency.fsync.add(monotonic_s() - began_s)

    def _apply(self, entry: Entry) -> None:
        self.applied = entry.index
        self._applied_bytes += len(entry.data)
        position = (entry.index, entry.term)
        if entry.kind is EntryKind.COMMAND:
            applied = self.state.apply(entry.index, entry.data)
            self.feed.add(applied.changes)
            if (answer := self._answers.pop(position, None)) is not None:
                _answer(answer, applied.outcome)
        elif (done := self._changing.pop(position, None)) is not None:
            _answer(done, None)

    def _serve_reads(self) -> None:
        for id, index in self._reads_due:
            if index <= self.applied:
                _answer(self._reading.pop(id), None)
        self._reads_due = [(id, index) for id, index in self._reads_due if index > self.applied]

    async def _compact(self, requested: list["asyncio.Future[None]"]) -> None:
        """Replace a long log by a snapshot of the state, also on request."""
        length = self.applied - self.raft.log.snapshot.index
        is_long = length >= self.pace.snapshot_every or self._applied_bytes >= self.pace.snapshot_bytes
        if is_long or (requested and length > 0):
            self._applied_bytes = 0
            snapshot = self.raft.compact(self.applied, self.state.snapshot())
            rest = self.raft.log.between(Index(self.applied + 1), self.raft.log.last_index)
            args = (snapshot, self._hard_state, rest)
            await asyncio.get_running_loop().run_in_executor(self._disk, self._storage.save_snapshot, *args)
        for taken in requested:
            _answer(taken, None)

    # Changes that are reported to others.

    def _public_state(self) -> tuple[object, ...]:
        raft = self.raft
        return raft.role, raft.leader, raft.term, raft.membership, queries.addresses(self.state)

    def _publish_changes(self) -> None:
        if not self.raft.is_leader and (self._answers or self._changing or self._reading):
            self._fail_waiting()
        if (state := self._public_state()) != self._published:
            self._published = state
            self.feed.wake()
            self.on_change()

    def _fail_waiting(self) -> None:
        """Leadership is lost: whether these will be applied is unknown."""
        self.latency.gave_up(len(self._answers))
        for answer in self._answers.values():
            _fail(answer, NotLeaderError())
        for waiting in (*self._changing.values(), *self._reading.values()):
            _fail(waiting, NotLeaderError())
        self._answers.clear()
        self._changing.clear()
        self._reading.clear()
        self._reads_due.clear()

    def _new_future(self) -> "asyncio.Future[T]":
        self._wake.set()
        return asyncio.get_running_loop().create_future()


def _register(
    waiting: dict[LogPosition, "asyncio.Future[T]"], position: LogPosition | None, answer: "asyncio.Future[T]"
) -> None:
    if position is None:
        _fail(answer, NotLeaderError())
    else:
        waiting[position] = answer


def _answer(waiting: "asyncio.Future[T]", value: T) -> None:
    if not waiting.done():  # the caller may have gone away
        waiting.set_result(value)


def _fail(waiting: "asyncio.Future[T]", error: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(error)
