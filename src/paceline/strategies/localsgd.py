"""LocalSGD: a few steps alone, then the parameters of all workers are averaged.

Averaging happens after steps H, 2H, … and after the last one; during the first
`post_local_after` steps after every one (post-local SGD). Parameters and
buffers are averaged, weighted by batch; the optimizer's own state stays local
unless the plan sets `average_optimizer_state`. Averaging copies into the
existing storage and never rebinds it.
"""

from typing import ClassVar

from torch import Tensor

from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.means import Moments, mean_of
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.sync.averaging import averages_after, mean_weight
from paceline.transport.arena import STOP_FLAG
from paceline.transport.ports import Traffic


class Localsgd:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "localsgd meets by a collective"
        self._collective = links.collective
        self._plan = plan
        self._links = links
        self._weight = mean_weight(links.rank, plan.batch_sizes)
        self._moments = Moments(links.collective)
        self._saved: dict[str, Tensor] = {}

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        self._replica = replica
        self._arena = arena
        arena.absent_are_zero = self._plan.strategy.average_optimizer_state
        arena.place_state(self._collective.allocate(arena.layout.numel, arena.layout.dtype))
        self._collective.broadcast(arena.state)
        layout = arena.layout
        self._mean = mean_of(
            self._plan, self._links, arena.state, lossy_end=layout.buffers_start, pieces=layout.parameters
        )
        self._mean.restore(self._saved)
        # The last common parameters: a lossy mean is taken of the differences from them.
        self._common = arena.state[: layout.buffers_start].clone() if self._mean.is_lossy else None

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        apply_ns = self._replica.update()
        options = self._plan.strategy
        if not averages_after(
            step + 1,
            total=self._plan.steps,
            every=options.sync_every,
            post_local_after=options.post_local_after,
        ):
            return Outcome(apply_ns=apply_ns)
        traffic, stop = self._average(wants_stop=wants_stop)
        if options.average_optimizer_state:
            moments = list(self._replica.optimizer_state().values())
            traffic += self._moments.average(moments, weight=self._weight)
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=True, stop=stop)

    def _average(self, *, wants_stop: bool) -> tuple[Traffic, bool]:
        """Replace every worker's state by the mean; also whether any worker wants to stop."""
        state = self._arena.state
        layout = self._arena.layout
        parameters = state[: layout.buffers_start]
        tail = state[layout.tail_start :]
        if self._common is not None:
            parameters.sub_(self._common)
        if self._weight != 1.0:
            state.mul_(self._weight)
        tail[STOP_FLAG] = float(wants_stop)
        traffic = self._mean.reduce()
        if self._common is not None:
            self._common.copy_(parameters.add_(self._common))
        return traffic, bool(tail[STOP_FLAG] > 0)

    def snapshot(self) -> dict[str, Tensor]:
        return self._mean.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()
