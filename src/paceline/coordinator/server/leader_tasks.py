"""Tasks of the leader: worker leases (LeaseMonitor) and new generations (GenerationManager).

Heartbeats stay on the leader; only losses enter the Raft log. A lease is counted from the last
heartbeat, from the start of leadership, or from the end of the leader's last standstill,
whichever is latest. A leader that did not run has received no heartbeats, so after a gap every
worker holds a whole lease again before any is judged lost. The process stood still if the
monitor, which polls every LEASE_POLL_S, did not run for longer than a heartbeat interval.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.change_feed import TooOldError
from paceline.coordinator.server.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.state import queries
from paceline.coordinator.state.generations import Later, last_joined, next_generation
from paceline.core.clock import StandstillDetector, boottime_s, monotonic_s

# Signs of life stay on the leader; only losses enter the log. A lease is counted from the last sign of
# life, from when the leader began to lead, or from the end of the leader's last standstill, whichever is
# latest: a leader that did not run has received no signs, so after a gap every worker holds a whole lease
# again before any is judged. Pure: the time is given.


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    run: str
    worker: str
    incarnation: int


@dataclass(slots=True)
class Leases:
    lease_s: float
    grace_s: float
    _heard_s: dict[Holder, float] = field(default_factory=dict)
    _closed_s: dict[Holder, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._heard_s)

    def restart(self, holders: Iterable[Holder], now_s: float) -> None:
        """Leadership begins: every worker gets a whole lease."""
        self._heard_s = dict.fromkeys(holders, now_s)
        self._closed_s.clear()

    def heard(self, holder: Holder, now_s: float) -> None:
        self._heard_s[holder] = now_s
        self._closed_s.pop(holder, None)

    def holds(self, holder: Holder) -> bool:
        return holder in self._heard_s

    def closed(self, holder: Holder, now_s: float) -> None:
        """Its connection ended without a goodbye: it may come back, but soon."""
        if holder in self._heard_s:
            self._closed_s[holder] = now_s

    def end(self, holder: Holder) -> None:
        self._heard_s.pop(holder, None)
        self._closed_s.pop(holder, None)

    def clear(self) -> None:
        self._heard_s.clear()
        self._closed_s.clear()

    def take_expired(self, now_s: float, attentive_since_s: float = -math.inf) -> list[tuple[Holder, str]]:
        """The workers that are lost now, each with the reason; they hold nothing any more.

        `attentive_since_s`: when the last standstill of this process ended (`clock.Attention`).
        """
        found = sorted(
            holder for holder in self._heard_s if self._until_s(holder, attentive_since_s) <= now_s
        )
        lost = [(holder, self._reason(holder)) for holder in found]
        for holder in found:
            self.end(holder)
        return lost

    def _until_s(self, holder: Holder, attentive_since_s: float) -> float:
        until_s = max(self._heard_s[holder], attentive_since_s) + self.lease_s
        if holder not in self._closed_s:
            return until_s
        # Connections that broke during a standstill, or because of it, are found closed after it.
        grace_until_s = max(self._closed_s[holder] + self.grace_s, attentive_since_s + self.lease_s)
        return min(until_s, grace_until_s)

    def _reason(self, holder: Holder) -> str:
        if holder in self._closed_s:
            return f"its connection ended and it did not come back within {self.grace_s:g} s"
        return f"no sign of life for {self.lease_s:g} s"


LEASE_POLL_S = 0.05


class LeaseMonitor:
    def __init__(
        self,
        node: Node,
        leases: Leases,
        attention: StandstillDetector,
        on_standstill: Callable[[float], None],
    ) -> None:
        self._node, self._leases = node, leases
        self._attention, self._on_standstill = attention, on_standstill
        self._attentive_since_s = attention.since_s
        self._term = 0  # the one that we lead in and keep leases for

    async def run(self) -> None:
        following = asyncio.create_task(self._follow_workers())
        self._look()
        try:
            while True:
                await asyncio.sleep(LEASE_POLL_S)
                self._notice_leadership()
                for holder, reason in self._leases.take_expired(monotonic_s(), self._look()):
                    await self._lose(holder, reason)
        finally:
            following.cancel()

    def _look(self) -> float:
        since_s = self._attention.look(monotonic_s(), boottime_s())
        if since_s != self._attentive_since_s:
            self._attentive_since_s = since_s
            self._on_standstill(self._attention.gap_s)
        return since_s

    def _notice_leadership(self) -> None:
        raft = self._node.raft
        if not raft.is_leader:
            self._term = 0
            self._leases.clear()
        elif self._term != raft.term:
            self._term = raft.term
            # We heard nobody yet, and those who live need time to find us.
            living = [Holder(*found) for found in queries.living(self._node.state)]
            self._leases.restart(living, monotonic_s())

    async def _follow_workers(self) -> None:
        """Whoever joins holds a lease from then on, also before the first sign of life."""
        while True:
            try:
                async for changes in self._node.feed.watch(self._node.applied):
                    for change in changes:
                        if change.HasField("worker") and self._term:
                            self._take(change.worker)
            except TooOldError:
                self._term = 0  # look at everybody again

    def _take(self, worker: pb.Worker) -> None:
        holder = Holder(worker.run, worker.worker, worker.incarnation)
        if worker.phase not in (pb.WORKER_JOINED, pb.WORKER_ACTIVE):
            self._leases.end(holder)
        elif not self._leases.holds(holder):
            self._leases.heard(holder, monotonic_s())

    async def _lose(self, holder: Holder, reason: str) -> None:
        lost = pb.LoseWorker(
            run=holder.run, worker=holder.worker, incarnation=holder.incarnation, reason=reason
        )
        try:
            await self._node.propose(pb.Command(lose_worker=lost))
        except NotLeaderError:
            return  # the new leader grants it a new lease, and will notice too
        except TooBusyError:
            self._leases.heard(holder, monotonic_s() - self._leases.lease_s)  # at the next look again


GENERATION_POLL_S = 0.5  # a new leader looks at everything at least this often


class GenerationManager:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._changed = asyncio.Event()
        # Of each run the newest incarnation, and when it was first seen here.
        self._joins: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        following = asyncio.create_task(self._follow())
        try:
            while True:
                wait_s = await self._form_all() if self._node.raft.is_leader else GENERATION_POLL_S
                # Not wait_for: on Python 3.11 it forgets that we were stopped if something changes just then.
                with suppress(TimeoutError):  # then it is time to look again
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                self._changed.clear()
        finally:
            following.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                async for _ in self._node.feed.watch(self._node.applied):
                    self._changed.set()
            except TooOldError:
                self._changed.set()

    async def _form_all(self) -> float:
        """Form what is due; how long until something else may be."""
        wait_s, runs = GENERATION_POLL_S, self._node.state.runs
        self._joins = {run: seen for run, seen in self._joins.items() if run in runs}
        for run, record in list(runs.items()):
            found = next_generation(record, self._waited_ms(run, last_joined(record)))
            if isinstance(found, Later):
                wait_s = min(wait_s, max(0.001, found.in_ms / 1000))
            elif found is not None:
                await self._propose(found)
        return wait_s

    def _waited_ms(self, run: str, newest: int) -> int:
        now_s = monotonic_s()
        incarnation, seen_s = self._joins.get(run, (0, now_s))
        if incarnation != newest:
            seen_s = now_s
        self._joins[run] = (newest, seen_s)
        return int((now_s - seen_s) * 1000)

    async def _propose(self, forming: pb.FormGeneration) -> None:
        try:
            # A refusal means that something changed meanwhile, and then we are woken again.
            await self._node.propose(pb.Command(form_generation=forming))
        except (NotLeaderError, TooBusyError):
            return
