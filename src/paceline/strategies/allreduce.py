"""Base of the strategies that all-reduce gradients at every step, and the guard against NaN.

All workers start from rank 0's parameters. Buffers are averaged along with the
gradients, and the stop flag travels in the same vector: all workers stop after
the same step. A subclass (ssgd, onebit) chooses the mean of each step.

A NaN or infinity anywhere in the mean makes its sum non-finite, so one pass
detects it. All workers hold the same mean and reach the same decision without
communication: stop with an error, or skip the update (`--on-nan`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from paceline.core.errors import HopelessError, NotFiniteError
from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import OnNan, Plan
from paceline.strategies.batch_norm import SharedSums, synchronize_batch_norm
from paceline.strategies.means import Mean
from paceline.strategies.port import Begun, Links, Outcome, Replica, Weighted, own_share
from paceline.sync.averaging import mean_weight
from paceline.transport.arena import STOP_FLAG, is_non_finite


def describe_shards(shards: Sequence[int]) -> str:
    return ",".join(map(str, shards)) or "unknown"


class NonFiniteGuard:
    """Checks every mean; keeps a copy of what a step changes before its update, so that it can be undone."""

    def __init__(self, plan: Plan, module: nn.Module) -> None:
        self.on_nan = plan.strategy.on_nan
        self._buffers = list(module.buffers()) if self.on_nan is OnNan.SKIP else []
        self._before = [buffer.clone() for buffer in self._buffers]

    def skips(self, mean: Tensor, step: int, *, contributors: str) -> bool:
        """Whether to skip the update. Raises HopelessError when the run is to stop."""
        if self.on_nan is None or not is_non_finite(mean):
            return False
        if self.on_nan is OnNan.STOP:
            raise non_finite_error(step, contributors)
        self.undo()
        return True

    def keep(self) -> None:
        """The step is done: a later undo() restores the present batch statistics."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            before.copy_(buffer)

    def undo(self) -> None:
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)


def non_finite_error(step: int, contributors: str) -> HopelessError:
    return NotFiniteError(
        f"the mean gradient of step {step} is not finite: NaN or infinity in {contributors}",
        "check the samples and the learning rate, or skip such steps: --on-nan skip; the update was not "
        "applied, and no checkpoint contains it",
    )


class AllReduceStrategy(ABC):
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "gradients meet by a collective"
        self._plan = plan
        self._links = links
        self._collective = links.collective
        self._weight = mean_weight(links.rank, plan.batch_sizes)
        self._saved: dict[str, Tensor] = {}

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        self._replica = replica
        self._arena = arena
        # Rank 0's parameters for all, even if a task forgot to seed its model.
        shared = self._collective.allocate(arena.layout.numel, arena.layout.dtype)
        shared.copy_(arena.state)
        self._collective.broadcast(shared)
        arena.state.copy_(shared)
        arena.place_gradients(shared.zero_())
        self._sums: SharedSums | None = None
        if self._plan.strategy.sync_batchnorm:
            self._sums = synchronize_batch_norm(arena.module, self._collective)
            # Losses are mixed in the statistics' gradients, so they are weighted before the backward pass.
            assert isinstance(replica, Weighted), "a worker's replica weights its loss"
            replica.loss_weight = self._weight
            self._weight = 1.0
        self._guard = NonFiniteGuard(self._plan, arena.module)
        self._make_means(shared)

    @abstractmethod
    def _make_means(self, shared: Tensor) -> None:
        """Create the means over `shared`, the vector in which gradients are averaged."""

    @abstractmethod
    def _mean_at(self, step: Step) -> Mean:
        """The mean for this step; the gradient is already weighted, and may still be changed."""

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        arena = self._arena
        if self._weight != 1.0:
            arena.gradient_part.mul_(self._weight)
        mean = self._mean_at(step)
        arena.buffers_to_gradients()
        tail = arena.gradients[arena.layout.tail_start :]
        tail[STOP_FLAG] = float(wants_stop)
        traffic = mean.reduce()
        if self._sums is not None:
            traffic += self._sums.take_traffic()
        stop = bool(tail[STOP_FLAG] > 0)
        if self._guard.skips(arena.gradients[: arena.layout.tail_start], step, contributors="some worker's"):
            return Outcome(traffic=traffic, synced=True, stop=stop, skipped="unknown")
        arena.buffers_from_gradients()
        apply_ns = self._replica.update()
        self._guard.keep()
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=True, stop=stop)

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()
