"""The leader's task that turns silence into losses: a lease for every living worker, and losses in the log.

The task looks every `LOOK_S`. When it finds that it did not run for longer than a worker's beat takes, the
process stood still, and the leases are counted from then on (leases.py).
"""

import asyncio
from collections.abc import Callable

from paceline.clock import Attention, boottime_s, monotonic_s
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell.feed import TooOldError
from paceline.coordinator.shell.leases import Holder, Leases
from paceline.coordinator.shell.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.state import view

LOOK_S = 0.05


class Keeper:
    def __init__(
        self, node: Node, leases: Leases, attention: Attention, on_standstill: Callable[[float], None]
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
                await asyncio.sleep(LOOK_S)
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
            living = [Holder(*found) for found in view.living(self._node.state)]
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
