"""Elastic synchronous SGD over logical shards, independent of the number of workers.

A step is V gradients, one for each shard, computed by the workers of the present
generation; their mean is taken in the order of the shards. With as many workers as
shards this equals ssgd, bit by bit; with fewer, some compute several shards in
turn. Compressed and robust means are in slot_means.py. `committed` is the number of
steps that all surviving workers agree on: a step counts once its mean is complete
and the update is made. A `ShardSharing` rule assigns the shards.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from paceline.core.ids import Clock, Rank, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import OnNan, Plan
from paceline.strategies.allreduce import describe_shards, non_finite_error
from paceline.strategies.elastic.slot_means import slot_mean_of
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.sync.assignment import WorkUnit
from paceline.sync.averaging import mean_weight
from paceline.sync.shard_balancing import shards_of
from paceline.transport.arena import STOP_FLAG, is_non_finite


class ShardSharing(Protocol):
    """Which worker computes which shards; the same result on all workers."""

    def own_shards(self) -> range:
        """This worker's shards of the next step; there may be none."""
        ...

    def before_barrier(self, step: int, shard_ns: int | None) -> None:
        """This worker's shards are done; `shard_ns` is the time of one, None if there were none."""
        ...

    def after_barrier(self, step: int) -> None:
        """All workers' shards are done."""
        ...

    def check(self) -> None:
        """Raise PeerLostError when a worker leaves and the others continue without it; never waits."""
        ...


class EqualShares:
    """Equal, fixed shares."""

    def __init__(self, rank: Rank, *, workers: int, shards: int) -> None:
        self._own_shards = shards_of(rank, workers=workers, shards=shards)

    def own_shards(self) -> range:
        return self._own_shards

    def before_barrier(self, step: int, shard_ns: int | None) -> None: ...

    def after_barrier(self, step: int) -> None: ...

    def check(self) -> None: ...


class _Counters:
    """Integer buffers, such as BatchNorm's `num_batches_tracked`: a mean of floats does not carry them.

    A worker without shards makes no forward pass, so it adds what a forward pass of its own last added.
    """

    def __init__(self, module: nn.Module) -> None:
        buffers = list(module.named_buffers())
        self._places = [
            place
            for place, (_, buffer) in enumerate(buffers)
            if not (buffer.is_floating_point() or buffer.is_complex() or buffer.dtype == torch.bool)
        ]
        self._counters = [buffers[place][1] for place in self._places]
        # Until it is measured: what BatchNorm adds.
        self._increments = [
            torch.full_like(buffers[place][1], int(buffers[place][0].endswith("num_batches_tracked")))
            for place in self._places
        ]

    def measure(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
        """All buffers of the module around one forward pass."""
        self._increments = [after[place] - before[place] for place in self._places]

    def advance(self) -> None:
        for counter, increment in zip(self._counters, self._increments, strict=True):
            counter.add_(increment)


class Sharded:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links, sharing: ShardSharing | None = None) -> None:
        assert links.shards is not None, "the gradients of shards meet in slots"
        self._plan = plan
        self._links = links
        self._slot_mean = links.shards
        self._saved: dict[str, Tensor] = {}
        self._clock = links.clock
        equal = EqualShares(links.rank, workers=links.world_size, shards=links.shards.shards)
        self._sharing = equal if sharing is None else sharing
        self._own_shards = self._sharing.own_shards()
        self._weights = [mean_weight(shard, plan.batch_sizes) for shard in range(links.shards.shards)]
        self.committed = 0
        self.gradients = 0  # computed by this worker
        self._at = 0  # index of the next shard in this worker's shards
        self._busy_ns = 0  # computing this worker's shards of this step
        self._begun_ns = 0

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """`clock` steps of the run are committed, and every worker's replica has them."""
        arena = replica.arena
        self._replica = replica
        self._arena = arena
        self.committed = int(clock)
        self._own = arena.gradients  # the arena's own vector, used outside a generation
        slots, self._mean = self._slot_mean.allocate(arena.layout.numel, arena.layout.dtype)
        self._slots: Sequence[Tensor] = slots
        self._other_mean = slot_mean_of(self._plan, self._links, slots, arena.layout, self._saved)
        if self._other_mean is not None:
            self._mean = self._own
        self._slot_mean.checks_finite = self._plan.strategy.on_nan is not None
        self._buffers = list(arena.module.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]
        self._counters = _Counters(arena.module)

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        if self.committed >= self._plan.steps:
            return None
        self._slot_mean.check()  # a worker that never waits would not notice otherwise
        self._sharing.check()
        self._restore_buffers()
        if not self._own_shards:
            self._replica.step = self.committed  # no gradient is computed here, which would set it
            return self._commit()
        self._begun_ns = self._clock.now_ns()
        self._arena.place_gradients(
            self._slots[self._own_shards[self._at]]
        )  # backward writes into the slot itself
        return Begun(share=WorkUnit(self._own_shards[self._at], self.committed))

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        arena = self._arena
        shard = self._own_shards[self._at]
        self._busy_ns += self._clock.now_ns() - self._begun_ns
        if self._weights[shard] != 1.0:
            arena.gradient_part.mul_(self._weights[shard])
        arena.buffers_to_gradients()
        arena.gradients[arena.layout.tail_start + STOP_FLAG] = float(wants_stop)
        self._at += 1
        self.gradients += 1
        if self._at < len(self._own_shards):
            return Outcome()
        return self._commit()

    @property
    def steps_done(self) -> int:
        return self.committed

    def undo(self) -> None:
        """Restore the replica to the last commit."""
        self._restore_buffers()
        if self._other_mean is not None:
            self._other_mean.undo()

    def _restore_buffers(self) -> None:
        """Restore the batch statistics from the start of the step, for the next shard or attempt."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)

    def _commit(self) -> Outcome:
        arena = self._arena
        self._sharing.before_barrier(self.committed, self._busy_ns // self._at if self._at else None)
        if self._other_mean is None:
            traffic = self._slot_mean.mean(self._own_shards)
        else:
            traffic = self._other_mean.reduce(self._own_shards, self._own)
        self._sharing.after_barrier(self.committed)
        stop = bool(self._mean[arena.layout.tail_start + STOP_FLAG] > 0)
        skipped = self._skipped()
        apply_ns = 0
        if skipped is None:
            self._take_mean()
            arena.buffers_from_gradients()
            if not self._at:
                self._counters.advance()
            apply_ns = self._replica.update()
        was_computed = self._at > 0 and skipped is None
        self.committed += 1
        self._at = 0
        self._busy_ns = 0
        self._own_shards = self._sharing.own_shards()
        if was_computed and not self._own_shards:
            self._counters.measure(self._before, self._buffers)
        for buffer, before in zip(self._buffers, self._before, strict=True):
            before.copy_(buffer)
        return Outcome(
            traffic=traffic,
            apply_ns=apply_ns,
            synced=True,
            stop=stop,
            shares_done=self.committed * len(self._slots),
            skipped=skipped,
        )

    def _skipped(self) -> str | None:
        """The shards whose gradients are not finite, if this step is to be skipped for them."""
        on_nan = self._plan.strategy.on_nan
        if on_nan is None or self._is_mean_finite():
            return None
        # After a mean that is not exact the slots hold something else, or the next gradients.
        bad = self._slot_mean.non_finite(self._own_shards) if self._other_mean is None else []
        shards = describe_shards(bad)
        if on_nan is OnNan.STOP:
            raise non_finite_error(self.committed, f"the gradient of shard {shards}")
        if self._other_mean is None:
            self._slot_mean.settle()  # only then may any worker write its next gradient
        self._restore_buffers()
        return shards

    def _is_mean_finite(self) -> bool:
        if self._other_mean is None:
            return self._slot_mean.is_finite()
        return not is_non_finite(self._mean[: self._arena.layout.tail_start])

    def _take_mean(self) -> None:
        """Bind the mean as gradients, or a copy if the update may change it: other workers read it too."""
        arena = self._arena
        if self._replica.keeps_gradients:
            arena.place_gradients(self._mean)
        else:
            if self._mean is not self._own:
                self._own.copy_(self._mean)
            arena.place_gradients(self._own)
        arena.bind_gradients()

    def snapshot(self) -> dict[str, Tensor]:
        return {} if self._other_mean is None else self._other_mean.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._arena.place_gradients(self._own)
        self._arena.bind_gradients()
        self._arena.forget_vectors()  # otherwise the generation's memory would stay mapped
        self._slot_mean.close()
