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
from paceline.coordinator.raft.core import Dice, Raft, Timing
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

MAX_TICKS = 3  # made up for at once: a process that was frozen must not think that all others were silent
MAX_WAITING = 20_000  # commands without an answer

Send = Callable[[Iterable[Message]], None]
ReportInvalid = Callable[[str], None]  # about a message that no node that works as it should could have sent
LogPosition = tuple[Index, Term]
T = TypeVar("T")


class NotLeaderError(Exception):
    """Somebody else leads, or nobody does, or leadership was lost before the answer was known."""


class TooBusyError(Exception):
    """More commands wait for an answer than a node keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a node spends its time. With the defaults a lost leader is replaced within 200 to 450 ms."""

    tick_s: float = 0.02
    election_ticks: int = 10
    heartbeat_ticks: int = 2
    snapshot_every: int = 20_000  # entries
    snapshot_bytes: int = 64 << 20  # or of entries so long together: they are in memory, too

    @property
    def timing(self) -> Timing:
        return Timing(election=self.election_ticks, heartbeat=self.heartbeat_ticks)


@dataclass(slots=True)
class _Inbox:
    """What came in since the last round of the loop."""

    messages: list[tuple[Message, ReportInvalid]] = field(default_factory=list)
    broken: list[NodeId] = field(default_factory=list)  # whose connection to us has ended
    commands: list[tuple[pb.Command, "asyncio.Future[pb.Outcome]"]] = field(default_factory=list)
    reads: list["asyncio.Future[None]"] = field(default_factory=list)
    changes: list[tuple[Membership, "asyncio.Future[None]"]] = field(default_factory=list)
    handovers: list[tuple[NodeId, "asyncio.Future[None]"]] = field(default_factory=list)
    snapshots: list["asyncio.Future[None]"] = field(default_factory=list)


class Node:
    def __init__(
        self, me: NodeId, storage: Storage, found: StoredState, *, send: Send, dice: Dice, pace: Pace
    ) -> None:
        self.me, self.pace, self.feed = me, pace, ChangeFeed()
        self.state = CoordinatorState.restore(found.snapshot.data)
        self.raft = Raft(me, found.hard_state, found.log(), dice=dice, timing=pace.timing)
        self.applied = found.snapshot.index
        self._applied_bytes = 0  # since the snapshot
        self.on_change: Callable[[], None] = lambda: None  # role, leader, term, membership or addresses
        self._storage, self._send = storage, send
        self._hard_state = found.hard_state
        self.measured = LatencyMetrics(me, found.hard_state.term)
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coordinator-disk")
        self._wake = asyncio.Event()
        self._inbox = _Inbox()
        self._answers: dict[LogPosition, asyncio.Future[pb.Outcome]] = {}
        self._changing: dict[LogPosition, asyncio.Future[None]] = {}
        self._reading: dict[int, asyncio.Future[None]] = {}
        self._due: list[tuple[int, Index]] = []  # reads that wait for being applied up to there
        self._next_read = 0
        self._ticked_s = monotonic_s()
        self._elapsed_s = 0.0  # a standstill does not count: the clients may have stood still too
        self._elapsed_term = Term(0)
        self.feed.restart(self.applied)
        self._seen = self._standing()

    # What the services ask for.

    def deliver(self, message: Message, complain: ReportInvalid) -> None:
        self._inbox.messages.append((message, complain))
        self._wake.set()

    def lost_touch(self, other: NodeId) -> None:
        self._inbox.broken.append(other)
        self._wake.set()

    async def propose(self, command: pb.Command) -> pb.Outcome:
        """What came of it, once it is applied here. NotLeaderError: whether it will be is unknown."""
        return await self.submit(command)

    def submit(self, command: pb.Command) -> "asyncio.Future[pb.Outcome]":
        """The same, for those who do not wait for one before they send the next."""
        if not self.raft.is_leader:
            raise NotLeaderError
        if len(self._answers) + len(self._inbox.commands) > MAX_WAITING:
            self.measured.proposals_failed += 1
            raise TooBusyError
        answer: asyncio.Future[pb.Outcome] = self._promise()
        self._inbox.commands.append((command, answer))
        return answer

    async def agree(self) -> None:
        """Wait until everything that was committed before this call is applied here (6.4)."""
        if not self.raft.is_leader:
            raise NotLeaderError
        read: asyncio.Future[None] = self._promise()
        self._inbox.reads.append(read)
        await read

    async def change(self, membership: Membership) -> None:
        """Until it is committed; NotLeaderError also when another change is under way."""
        done: asyncio.Future[None] = self._promise()
        self._inbox.changes.append((membership, done))
        await done

    async def hand_over(self, to: NodeId) -> None:
        """Until it was asked for: the other one leads soon after, or we go on."""
        asked: asyncio.Future[None] = self._promise()
        self._inbox.handovers.append((to, asked))
        await asked

    async def snapshot(self) -> None:
        taken: asyncio.Future[None] = self._promise()
        self._inbox.snapshots.append(taken)
        await taken

    # The loop.

    async def run(self) -> None:
        """Until it is cancelled. A StorageError ends it too: what a disk may have lost cannot be promised."""
        ticker = asyncio.create_task(self._wake_every_tick())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                inbox, self._inbox = self._inbox, _Inbox()
                self._take_in(inbox)
                while await self._carry_out(self.raft.ready()):
                    pass
                await self._compact(inbox.snapshots)
                self._notice()
        finally:
            ticker.cancel()
            self._give_up()
            self._disk.shutdown(wait=True)

    async def _wake_every_tick(self) -> None:
        while True:
            await asyncio.sleep(self.pace.tick_s)
            self._wake.set()

    def _take_in(self, inbox: _Inbox) -> None:
        for message, complain in inbox.messages:
            if (why := why_impossible(self.raft, message)) is None:
                self.measured.heard(message)
                self.raft.step(message)
            else:
                complain(why)
        for other in inbox.broken:
            self.raft.lost_touch(other)
            self.measured.lost_touch(other)
        self._tick()
        for command, answer in inbox.commands:
            command.at_ms = int(unix_now_s() * 1000)
            command.elapsed_ms = self._take_elapsed_ms()
            _keep(self._answers, self.raft.propose(command.SerializeToString()), answer)
        if inbox.commands:  # all were taken in, or none
            is_taken = self.raft.is_leader and not self.raft.is_handing_over
            self.measured.proposed(self.raft.log.last_index, len(inbox.commands), is_taken=is_taken)
        for read in inbox.reads:
            self._next_read += 1
            if self.raft.read(self._next_read):
                self._reading[self._next_read] = read
            else:
                _fail(read, NotLeaderError())
        for membership, done in inbox.changes:
            _keep(self._changing, self.raft.change(membership), done)
        for to, asked in inbox.handovers:
            if self.raft.transfer(to):
                _answer(asked, None)
            else:
                _fail(asked, NotLeaderError())

    def _tick(self) -> None:
        now_s = monotonic_s()
        missed = int((now_s - self._ticked_s) / self.pace.tick_s)
        self._ticked_s = now_s if missed > MAX_TICKS else self._ticked_s + missed * self.pace.tick_s
        for _ in range(min(missed, MAX_TICKS)):
            self.raft.tick()
        self._elapsed_s += min(missed, MAX_TICKS) * self.pace.tick_s

    def _take_elapsed_ms(self) -> int:
        """What this node has run since its previous command in this term, or since it leads."""
        if self._elapsed_term != self.raft.term:
            self._elapsed_term = self.raft.term
            self._elapsed_s = 0.0
        elapsed_ms = int(self._elapsed_s * 1000)
        self._elapsed_s -= elapsed_ms / 1000
        return elapsed_ms

    async def _carry_out(self, ready: Ready) -> bool:
        """Was there anything to do? Then there may be more."""
        self._send(ready.early)
        self.measured.sent(ready.early)
        self.measured.stood(ready.hard_state)
        if ready.must_persist:
            await self._persist(ready)
        self._send(ready.messages)
        for entry in ready.committed:
            self._apply(entry)
        self.measured.applied(self.applied)
        self._due += ready.reads
        for id in ready.lost_reads:
            _fail(self._reading.pop(id), NotLeaderError())
        self._serve_reads()
        return ready.must_persist or bool(ready.messages or ready.committed or ready.reads)

    async def _persist(self, ready: Ready) -> None:
        loop = asyncio.get_running_loop()
        if ready.hard_state is not None:
            self._hard_state = ready.hard_state
        if ready.snapshot is None:
            what = (ready.hard_state, ready.entries)
            if ready.early:  # they are on their way while our disk works
                await loop.run_in_executor(self._disk, self._save, *what)
            else:  # nobody hears of it before it is written: a thread would only cost time
                self._save(*what)
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
        self.measured.fsync.add(monotonic_s() - began_s)

    def _apply(self, entry: Entry) -> None:
        self.applied = entry.index
        self._applied_bytes += len(entry.data)
        place = (entry.index, entry.term)
        if entry.kind is EntryKind.COMMAND:
            applied = self.state.apply(entry.index, entry.data)
            self.feed.add(applied.changes)
            if (answer := self._answers.pop(place, None)) is not None:
                _answer(answer, applied.outcome)
        elif (done := self._changing.pop(place, None)) is not None:
            _answer(done, None)

    def _serve_reads(self) -> None:
        for id, index in self._due:
            if index <= self.applied:
                _answer(self._reading.pop(id), None)
        self._due = [(id, index) for id, index in self._due if index > self.applied]

    async def _compact(self, asked: list["asyncio.Future[None]"]) -> None:
        """Put the state in the place of a long log, or because somebody asked."""
        length = self.applied - self.raft.log.snapshot.index
        is_long = length >= self.pace.snapshot_every or self._applied_bytes >= self.pace.snapshot_bytes
        if is_long or (asked and length > 0):
            self._applied_bytes = 0
            snapshot = self.raft.compact(self.applied, self.state.snapshot())
            rest = self.raft.log.between(Index(self.applied + 1), self.raft.log.last_index)
            what = (snapshot, self._hard_state, rest)
            await asyncio.get_running_loop().run_in_executor(self._disk, self._storage.save_snapshot, *what)
        for taken in asked:
            _answer(taken, None)

    # What others must hear of.

    def _standing(self) -> tuple[object, ...]:
        raft = self.raft
        return raft.role, raft.leader, raft.term, raft.membership, queries.addresses(self.state)

    def _notice(self) -> None:
        if not self.raft.is_leader and (self._answers or self._changing or self._reading):
            self._give_up()
        if (standing := self._standing()) != self._seen:
            self._seen = standing
            self.feed.wake()
            self.on_change()

    def _give_up(self) -> None:
        """We do not lead any more: whether these will be applied is for others to say."""
        self.measured.gave_up(len(self._answers))
        for answer in self._answers.values():
            _fail(answer, NotLeaderError())
        for waiting in (*self._changing.values(), *self._reading.values()):
            _fail(waiting, NotLeaderError())
        self._answers.clear()
        self._changing.clear()
        self._reading.clear()
        self._due.clear()

    def _promise(self) -> "asyncio.Future[T]":
        self._wake.set()
        return asyncio.get_running_loop().create_future()


def _keep(
    waiting: dict[LogPosition, "asyncio.Future[T]"], place: LogPosition | None, answer: "asyncio.Future[T]"
) -> None:
    if place is None:
        _fail(answer, NotLeaderError())
    else:
        waiting[place] = answer


def _answer(waiting: "asyncio.Future[T]", value: T) -> None:
    if not waiting.done():  # whoever asked may have gone away
        waiting.set_result(value)


def _fail(waiting: "asyncio.Future[T]", error: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(error)
