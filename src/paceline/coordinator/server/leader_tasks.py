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
        """Its connection ended unexpectedly: it has `grace_s` to reconnect."""
        if holder in self._heard_s:
            self._closed_s[holder] = now_s

    def end(self, holder: Holder) -> None:
        self._heard_s.pop(holder, None)
        self._closed_s.pop(holder, None)

    def clear(self) -> None:
        self._heard_s.clear()
        self._closed_s.clear()

    def take_expired(self, now_s: float, attentive_since_s: float = -math.inf) -> list[tuple[Holder, str]]:
        """Remove the expired leases, and return their holders, each with the reason.

        `attentive_since_s`: when the last standstill of this process ended (`StandstillDetector`).
        """
        expired = sorted(
            holder for holder in self._heard_s if self._until_s(holder, attentive_since_s) <= now_s
        )
        lost = [(holder, self._reason(holder)) for holder in expired]
        for holder in expired:
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
            return f"its connection ended and it did not reconnect within {self.grace_s:g} s"
        return f"no heartbeat for {self.lease_s:g} s"


LEASE_POLL_S = 0.05


class LeaseMonitor:
    def __init__(
        self,
        node: Node,
        leases: Leases,
        attention: StandstillDetector,
        on_standstill: Callable[[float], None],
    ) -> None:
        self._node = node
        self._leases = leases
        self._attention = attention
        self._on_standstill = on_standstill
        self._attentive_since_s = attention.since_s
        self._term = 0  # term in which this node leads and tracks leases; 0: not leading

    async def run(self) -> None:
        following = asyncio.create_task(self._follow_workers())
        self._check_standstill()
        try:
            while True:
                await asyncio.sleep(LEASE_POLL_S)
                self._update_leadership()
                for holder, reason in self._leases.take_expired(monotonic_s(), self._check_standstill()):
                    await self._propose_loss(holder, reason)
        finally:
            following.cancel()

    def _check_standstill(self) -> float:
        since_s = self._attention.update(monotonic_s(), boottime_s())
        if since_s != self._attentive_since_s:
            self._attentive_since_s = since_s
            self._on_standstill(self._attention.gap_s)
        return since_s

    def _update_leadership(self) -> None:
        raft = self._node.raft
        if not raft.is_leader:
            self._term = 0
            self._leases.clear()
        elif self._term != raft.term:
            self._term = raft.term
            # No heartbeats have arrived yet, and live workers need time to find the new leader.
            living = [Holder(*worker) for worker in queries.living(self._node.state)]
            self._leases.restart(living, monotonic_s())

    async def _follow_workers(self) -> None:
        """A worker holds a lease from when it joins, also before its first heartbeat."""
        while True:
            try:
                async for changes in self._node.feed.watch(self._node.applied):
                    for change in changes:
                        if change.HasField("worker") and self._term:
                            self._on_worker(change.worker)
            except TooOldError:
                self._term = 0  # grant fresh leases to all workers of the state

    def _on_worker(self, worker: pb.Worker) -> None:
        holder = Holder(worker.run, worker.worker, worker.incarnation)
        if worker.phase not in (pb.WORKER_JOINED, pb.WORKER_ACTIVE):
            self._leases.end(holder)
        elif not self._leases.holds(holder):
            self._leases.heard(holder, monotonic_s())

    async def _propose_loss(self, holder: Holder, reason: str) -> None:
        lost = pb.LoseWorker(
            run=holder.run, worker=holder.worker, incarnation=holder.incarnation, reason=reason
        )
        try:
            await self._node.propose(pb.Command(lose_worker=lost))
        except NotLeaderError:
            return  # the new leader grants it a fresh lease, and will detect the loss too
        except TooBusyError:
            self._leases.heard(holder, monotonic_s() - self._leases.lease_s)  # again at the next poll


GENERATION_POLL_S = 0.5  # upper bound, also for a new leader


class GenerationManager:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._changed = asyncio.Event()
        # Newest incarnation of each run, and when this node first read it.
        self._joins: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        following = asyncio.create_task(self._follow())
        try:
            while True:
                wait_s = await self._form_all() if self._node.raft.is_leader else GENERATION_POLL_S
                # Not wait_for: on Python 3.11 it loses a cancellation if the event is set just then.
                with suppress(TimeoutError):  # then it is time to check again
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
        """Form the generations that are due; return the seconds until another may be."""
        wait_s = GENERATION_POLL_S
        runs = self._node.state.runs
        self._joins = {run: seen for run, seen in self._joins.items() if run in runs}
        for run, record in list(runs.items()):
            decision = next_generation(record, self._waited_ms(run, last_joined(record)))
            if isinstance(decision, Later):
                wait_s = min(wait_s, max(0.001, decision.in_ms / 1000))
            elif decision is not None:
                await self._propose(decision)
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
            # A refusal means that something changed meanwhile, and the change wakes this task again.
            await self._node.propose(pb.Command(form_generation=forming))
        except (NotLeaderError, TooBusyError):
            return
