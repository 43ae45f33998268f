"""Elastic synchronous SGD over logical shards, independent of the number of workers.

A step is V gradients, one for each shard, computed by the workers of the present
generation; their mean is taken in the order of the shards. With as many workers as
shards this equals ssgd, bit by bit; with fewer, some compute several shards in
turn. `committed` is the number of steps that all surviving workers agree on: a step
counts once its mean is complete and the update is made. A `ShardSharing` rule
assigns the shards.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from torch import Tensor

from paceline.core.ids import Clock, Rank, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import OnNan, Plan
from paceline.strategies.allreduce import describe_shards, non_finite_error, non_finite_shards
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.sync.assignment import WorkUnit
from paceline.sync.averaging import mean_weight
from paceline.sync.shard_balancing import shards_of
from paceline.transport.arena import STOP_FLAG


class ShardSharing(Protocol):
    """Who does which shards. Everybody who is there comes to the same answers."""

    def mine(self) -> range:
        """Our shards of the next step; there may be none."""
        ...

    def before_meeting(self, step: int, shard_ns: int | None) -> None:
        """Our shards are done, and one took so long; None: we had none."""
        ...

    def after_meeting(self, step: int) -> None:
        """Everybody's are."""
        ...

    def check(self) -> None:
        """PeerLostError when somebody leaves, and the others go on without; never waits."""
        ...


class EqualShares:
    """The same for everybody, and nobody comes or goes."""

    def __init__(self, rank: Rank, *, workers: int, shards: int) -> None:
        self._mine = shards_of(rank, workers=workers, shards=shards)

    def mine(self) -> range:
        return self._mine

    def before_meeting(self, step: int, shard_ns: int | None) -> None: ...

    def after_meeting(self, step: int) -> None: ...

    def check(self) -> None: ...


class Sharded:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links, sharing: ShardSharing | None = None) -> None:
        assert links.shards is not None, "the gradients of shards meet in slots"
        self._plan = plan
        self._meeting = links.shards
        self._clock = links.clock
        equal = EqualShares(links.rank, workers=links.world_size, shards=links.shards.shards)
        self._sharing = equal if sharing is None else sharing
        self._mine = self._sharing.mine()
        self._weights = [mean_weight(shard, plan.batch_sizes) for shard in range(links.shards.shards)]
        self.committed = 0
        self.gradients = 0  # that we have computed
        self._at = 0  # the next of our shards
        self._busy_ns = 0  # computing our shards of this step
        self._begun_ns = 0

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """`clock` steps of the run are committed, and everybody's replica has them."""
        arena = replica.arena
        self._replica = replica
        self._arena = arena
        self.committed = int(clock)
        self._own = arena.gradients  # where gradients are when no generation is there
        slots, self._mean = self._meeting.allocate(arena.layout.numel, arena.layout.dtype)
        self._slots: Sequence[Tensor] = slots
        self._meeting.looks_for_nan = self._plan.strategy.on_nan is not None
        self._buffers = list(arena.module.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        if self.committed >= self._plan.steps:
            return None
        self._meeting.check()  # who never has to wait would not notice
        self._sharing.check()
        self.undo()
        if not self._mine:
            return self._commit()
        self._begun_ns = self._clock.now_ns()
        self._arena.place_gradients(self._slots[self._mine[self._at]])  # backward writes into the slot itself
        return Begun(share=WorkUnit(self._mine[self._at], self.committed))

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        arena = self._arena
        shard = self._mine[self._at]
        self._busy_ns += self._clock.now_ns() - self._begun_ns
        if self._weights[shard] != 1.0:
            arena.gradient_part.mul_(self._weights[shard])
        arena.buffers_to_gradients()
        arena.gradients[arena.layout.tail_start + STOP_FLAG] = float(wants_stop)
        self._at += 1
        self.gradients += 1
        if self._at < len(self._mine):
            return Outcome()
        return self._commit()

    @property
    def steps_done(self) -> int:
        return self.committed

    def undo(self) -> None:
        """Batch statistics as they were when the step began: each shard and each attempt starts there."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)

    def _commit(self) -> Outcome:
        arena = self._arena
        self._sharing.before_meeting(self.committed, self._busy_ns // self._at if self._at else None)
        traffic = self._meeting.mean()
        self._sharing.after_meeting(self.committed)
        stop = bool(self._mean[arena.layout.tail_start + STOP_FLAG] > 0)
        skipped = self._skipped()
        apply_ns = 0
        if skipped is None:
            self._take_mean()
            arena.buffers_from_gradients()
            apply_ns = self._replica.update()
        self.committed += 1
        self._at = 0
        self._busy_ns = 0
        self._mine = self._sharing.mine()
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
        shards = describe_shards(non_finite_shards(self._slots))
        if on_nan is OnNan.STOP:
            raise non_finite_error(self.committed, f"the gradient of shard {shards}")
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
