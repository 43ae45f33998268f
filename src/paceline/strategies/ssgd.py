"""Synchronous SGD: the gradients of all workers are averaged at every step.

Every worker then makes the same update, so all replicas stay bitwise equal.
With unequal batches each gradient is weighted by its batch, so the mean is
that of the union of the batches. Buffers are averaged along with the
gradients, and a wish to stop rides in the same vector: all stop together.
"""

from typing import ClassVar

from torch import Tensor

from paceline.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.means import mean_of
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.strategies.robust import robust_mean_of
from paceline.sync.averaging import mean_weight
from paceline.transport.arena import STOP_FLAG


class Ssgd:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "ssgd meets by a collective"
        self._plan, self._links = plan, links
        self._collective = links.collective
        self._weight = mean_weight(links.rank, plan.batch_sizes)
        self._saved: dict[str, Tensor] = {}

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        self._replica, self._arena = replica, arena
        # Rank 0's parameters for all, even if a task forgot to seed its model.
        shared = self._collective.allocate(arena.layout.numel, arena.layout.dtype)
        shared.copy_(arena.state)
        self._collective.broadcast(shared)
        arena.state.copy_(shared)
        arena.place_gradients(shared.zero_())
        layout = arena.layout
        robust = robust_mean_of(self._plan, self._links, shared, layout)
        self._mean = robust or mean_of(
            self._plan, self._links, shared, lossy_end=layout.buffers_start, pieces=layout.parameters
        )
        self._mean.restore(self._saved)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        arena = self._arena
        if self._weight != 1.0:
            arena.gradient_part.mul_(self._weight)
        arena.buffers_to_gradients()
        tail = arena.gradients[arena.layout.tail_start :]
        tail[STOP_FLAG] = float(wants_stop)
        traffic = self._mean.reduce()
        stop = bool(tail[STOP_FLAG] > 0)
        arena.buffers_from_gradients()
        apply_ns = self._replica.update()
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=True, stop=stop)

    def snapshot(self) -> dict[str, Tensor]:
        return self._mean.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()
