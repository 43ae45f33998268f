"""Synchronous SGD over logical shards: what comes out depends on them, never on how many workers there are.

A step is V gradients, one for each shard, computed by whoever is there; their
mean is taken in the order of the shards. With as many workers as shards this
is ssgd, bit by bit; with fewer, some do several shards in turn. `committed` is
how many steps everybody who went on agrees on: a step counts once its mean was
complete and the update is made.
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from paceline.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import OnNan, Plan
from paceline.strategies.poison import in_words, poisoned_shards, stopped
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.sync.assignment import Share
from paceline.sync.averaging import mean_weight
from paceline.sync.shards import shards_of
from paceline.transport.arena import STOP_FLAG


class Sharded:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.shards is not None, "the gradients of shards meet in slots"
        self._plan, self._meeting = plan, links.shards
        self._mine = shards_of(links.rank, workers=links.world_size, shards=links.shards.shards)
        self._weights = [mean_weight(shard, plan.batch_sizes) for shard in range(links.shards.shards)]
        self.committed = 0
        self.gradients = 0  # that we have computed
        self._at = 0  # the next of our shards

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """`clock` steps of the run are committed, and everybody's replica has them."""
        arena = replica.arena
        self._replica, self._arena, self.committed = replica, arena, int(clock)
        self._own = arena.gradients  # where gradients are when no generation is there
        slots, self._mean = self._meeting.allocate(arena.layout.numel, arena.layout.dtype)
        self._slots: Sequence[Tensor] = slots
        self._meeting.looks_for_nan = self._plan.strategy.on_nan is not None
        self._buffers = list(arena.module.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def begin_step(self, step: Step) -> Begun | None:
        if self.committed >= self._plan.steps:
            return None
        self._meeting.check()  # who never has to wait would not notice
        self.undo()
        self._arena.place_gradients(self._slots[self._mine[self._at]])  # backward writes into the slot itself
        return Begun(share=Share(self._mine[self._at], self.committed))

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        arena, shard = self._arena, self._mine[self._at]
        if self._weights[shard] != 1.0:
            arena.gradient_part.mul_(self._weights[shard])
        arena.buffers_to_gradients()
        arena.gradients[arena.layout.tail_start + STOP_FLAG] = float(wants_stop)
        self._at += 1
        self.gradients += 1
        if self._at < len(self._mine):
            return Outcome()
        return self._commit()

    def undo(self) -> None:
        """Batch statistics as they were when the step began: each shard and each attempt starts there."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)

    def _commit(self) -> Outcome:
        arena = self._arena
        traffic = self._meeting.mean()
        stop = bool(self._mean[arena.layout.tail_start + STOP_FLAG] > 0)
        skipped = self._skipped()
        apply_ns = 0
        if skipped is None:
            self._take_mean()
            arena.buffers_from_gradients()
            apply_ns = self._replica.update()
        self.committed, self._at = self.committed + 1, 0
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
        """Whose gradients are not finite, if that makes this step one without an update."""
        on_nan = self._plan.strategy.on_nan
        if on_nan is None or self._meeting.is_finite():
            return None
        shards = in_words(poisoned_shards(self._slots))
        if on_nan is OnNan.STOP:
            raise stopped(self.committed, f"the gradient of shard {shards}")
        self._meeting.settle()  # only then may anyone write its next gradient
        self.undo()
        return shards

    def _take_mean(self) -> None:
        """Let the update read the mean where it is, or a copy if it may change it: others read it too."""
        arena = self._arena
        if self._replica.keeps_gradients:
            arena.place_gradients(self._mean)
        else:
            self._own.copy_(self._mean)
            arena.place_gradients(self._own)
        arena.bind_gradients()

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None:
        assert not saved, "between two steps there is nothing but the replica's own state"

    def close(self) -> None:
        self._arena.place_gradients(self._own)
        self._arena.bind_gradients()
        self._arena.forget_vectors()  # else the generation's memory would stay mapped
        self._meeting.close()
