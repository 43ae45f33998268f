"""Elastic LocalSGD, DiLoCo and FedAvg over logical shards, independent of the number of workers.

A shard is a logical worker that trains alone for a round: from the common
parameters, with its own optimizer state, samples and random numbers. A worker
trains its shards one after another. A round is committed as a whole: all shards'
parameters are averaged in the order of shards, DiLoCo makes its outer step, and
every worker receives each shard's own state. An interrupted round leaves no trace
and is repeated from the last commit, so the bits are those of the plain mode with
as many workers as shards.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.plan.schedule import draws_of
from paceline.strategies.elastic.slot_means import CompressedSlots
from paceline.strategies.elastic.synchronous import EqualShares, ShardSharing
from paceline.strategies.means import outer_step
from paceline.strategies.port import Begun, Links, Outcome, OwnState, Replica
from paceline.sync.assignment import WorkUnit
from paceline.sync.averaging import mean_weight, round_end
from paceline.transport.arena import STOP_FLAG
from paceline.transport.ports import NO_TRAFFIC, Traffic

_OWN = "own"
_VELOCITY = "velocity"


class ShardedRounds:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links, sharing: ShardSharing | None = None) -> None:
        assert links.rounds is not None, "the parameters of shards meet in slots, and so does what they keep"
        self._plan = plan
        self._links = links
        self._rounds = links.rounds
        self._clock = links.clock
        equal = EqualShares(links.rank, workers=links.world_size, shards=links.rounds.shards)
        self._sharing = equal if sharing is None else sharing
        self._own_shards: Sequence[int] = self._sharing.own_shards()
        self._weights = [mean_weight(shard, plan.batch_sizes) for shard in range(links.rounds.shards)]
        self._saved: dict[str, Tensor] = {}
        self.committed = 0
        self.gradients = 0  # computed by this worker
        self._at = 0  # index of the current shard in this worker's shards
        self._made = 0  # its steps of this round
        self._live: int | None = None  # the shard whose own state is in the replica
        self._busy_ns = 0  # computing this worker's shards of this round
        self._begun_ns = 0
        self._finished: dict[int, bytes] = {}  # the own state of this worker's shards that ended this round

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """`clock` steps of the run are committed, and every worker's replica has them."""
        assert isinstance(replica, OwnState), "shards change places in it"
        arena = replica.arena
        self._own = replica
        self._replica = replica
        self._arena = arena
        arena.absent_are_zero |= self._plan.strategy.average_optimizer_state
        self.committed = int(clock)
        slots, self._mean = self._rounds.allocate(arena.layout.numel, arena.layout.dtype)
        self._slots: Sequence[Tensor] = slots
        self._common = arena.state.clone()
        self._compressed: CompressedSlots | None = None
        if self._plan.compress is not None:
            self._mean = torch.empty_like(arena.state)
            self._compressed = CompressedSlots(self._plan, self._links, slots, arena.layout, self._saved)
        zeros = torch.zeros_like(self._parameters(arena.state))
        self._velocity = self._saved.get(_VELOCITY, zeros).to(arena.state.device)
        if self._saved:
            self._kept = [self._saved[f"{_OWN}.{shard}"] for shard in range(len(slots))]
        else:
            self._kept = [_as_tensor(self._own_state())] * len(slots)
        self._end = self._next_end()

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        if self._is_all_done():
            return None
        self._rounds.check()  # a worker that never waits would not notice otherwise
        self._sharing.check()
        if not self._own_shards:
            return self._commit(0)
        self._begun_ns = self._clock.now_ns()
        shard = self._own_shards[self._at]
        if self._made == 0:
            self._load_shard(shard)
        return Begun(share=self._share(shard))

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        apply_ns = self._update()
        self._busy_ns += self._clock.now_ns() - self._begun_ns
        self.gradients += 1
        self._made += 1
        if not self._is_over(self._own_shards[self._at]):
            return Outcome(apply_ns=apply_ns, version=self._version())
        self._publish(self._own_shards[self._at], wants_stop=wants_stop)
        self._at += 1
        self._made = 0
        if self._at < len(self._own_shards):
            return Outcome(apply_ns=apply_ns, version=self._version())
        return self._commit(apply_ns)

    @property
    def steps_done(self) -> int:
        """Steps of the run that are committed."""
        return self.committed

    def undo(self) -> None:
        """Restore the common parameters from the start of the round; shards repeat it from there."""
        self._at = 0
        self._made = 0
        self._busy_ns = 0
        self._finished.clear()
        self._kept = [kept.clone() for kept in self._kept]  # else the generation's memory would stay mapped
        if self._compressed is not None:
            self._compressed.undo()
        self.settle()

    def settle(self) -> None:
        """Between two rounds: load the common parameters, with the first shard's own state."""
        self._arena.state.copy_(self._common)
        self._own.restore_own_state(self.kept_by(0))
        self._live = 0

    def kept(self) -> list[bytes]:
        """The own state of each shard, as of the last commit."""
        return [self.kept_by(shard) for shard in range(len(self._kept))]

    def kept_by(self, shard: int) -> bytes:
        return _as_bytes(self._kept[shard])

    def snapshot(self) -> dict[str, Tensor]:
        """The state of the last committed round, without the common parameters."""
        own = {f"{_OWN}.{shard}": kept for shard, kept in enumerate(self._kept)}
        memories = {} if self._compressed is None else self._compressed.snapshot()
        outer = {_VELOCITY: self._velocity} if self._has_outer_step else {}
        return {**own, **memories, **outer}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._rounds.close()

    def _publish(self, shard: int, *, wants_stop: bool) -> None:
        """The round of this shard is over: publish its parameters and its own state."""
        self._finished[shard] = self._own_state()
        self._fill_slot(shard)
        self._slots[shard][self._arena.layout.tail_start + STOP_FLAG] = float(wants_stop)

    def _fill_slot(self, shard: int) -> None:
        slot = self._slots[shard]
        weight = self._weight(shard)
        slot.copy_(self._arena.state)
        if self._compressed is not None:  # a lossy mean is taken of the differences from what is common
            self._parameters(slot).sub_(self._parameters(self._common))
        if weight != 1.0:
            slot.mul_(weight)

    def _commit(self, apply_ns: int) -> Outcome:
        self._sharing.before_barrier(self.committed, self._busy_ns // self._at if self._at else None)
        traffic, kept = self._averaged()
        self._sharing.after_barrier(self.committed)
        stop = bool(self._mean[self._arena.layout.tail_start + STOP_FLAG] > 0)
        traffic += self._before_end(stop=stop)
        # Nothing waits from here on, so no failure can interrupt it.
        self._apply_mean(is_end=stop or self._end == self._plan.steps)
        self._kept = kept
        self.committed = self._end
        if self._plan.strategy.average_optimizer_state:
            self._average_own_states()
        version = self._version()
        self._at = 0
        self._end = self._next_end()
        self._busy_ns = 0
        self._own_shards = self._next_shards()
        if not self._finished:
            self._live = None  # other workers have trained that shard since
        self._finished.clear()
        return Outcome(
            traffic=traffic,
            apply_ns=apply_ns,
            version=version,
            synced=True,
            stop=stop,
            shares_done=self.committed * len(self._slots),
            is_last=self._is_all_done(),
        )

    def _averaged(self) -> tuple[Traffic, list[Tensor]]:
        """The mean of all shards, and what each keeps."""
        if self._compressed is None:
            return self._rounds.commit(self._finished)
        traffic, kept = self._compressed.commit(list(self._finished), self._finished, self._mean)
        self._parameters(self._mean).add_(self._parameters(self._common))
        return traffic, kept

    def _apply_mean(self, *, is_end: bool) -> None:
        common = self._common
        mean = self._mean
        rest = self._arena.layout.buffers_start
        if self._has_outer_step:
            options = self._plan.strategy
            theta = self._parameters(common)
            outer_step(
                theta,
                self._velocity,
                self._parameters(mean),
                lr=options.outer_lr,
                momentum=options.outer_momentum,
            )
            common[rest:].copy_(mean[rest:])
        else:
            common.copy_(mean)
        self._arena.state.copy_(common)

    def _average_own_states(self) -> None:
        """Every worker does this for all shards, on the same bytes."""
        averaged = self._own.average_own_states(self.kept(), self._weights)
        self._kept = [_as_tensor(data) for data in averaged]
        self._live = None

    # Overridden where not every shard takes part in every round (ShardedFedavg), or not all parameters are
    # averaged at once (streaming.py).

    def _update(self) -> int:
        """One step of the current shard; how long it took, in nanoseconds."""
        return self._replica.update()

    def _own_state(self) -> bytes:
        """The present own state of the current shard."""
        return self._own.own_state()

    def _before_end(self, *, stop: bool) -> Traffic:
        """All workers have the stop flag now: average what is left if the run ends here."""
        return NO_TRAFFIC

    def _is_all_done(self) -> bool:
        return self.committed >= self._plan.steps

    def _next_shards(self) -> Sequence[int]:
        """This worker's shards of the next round."""
        return self._sharing.own_shards()

    def _load_shard(self, shard: int) -> None:
        """Begin a shard's round: load the common parameters and its own state."""
        if self._live != shard:
            self._arena.state.copy_(self._common)
            self._own.restore_own_state(self.kept_by(shard))
            self._live = shard

    def _share(self, shard: int) -> WorkUnit:
        """The share of the shard's next step."""
        return WorkUnit(shard, self.committed + self._made)

    def _is_over(self, shard: int) -> bool:
        """Whether the shard has made all its steps of this round."""
        return self.committed + self._made >= self._end

    def _weight(self, shard: int) -> float:
        return self._weights[shard]

    def _version(self) -> int:
        """The version that a step is recorded with."""
        return 0

    def _parameters(self, vector: Tensor) -> Tensor:
        return vector[: self._arena.layout.buffers_start]

    @property
    def _has_outer_step(self) -> bool:
        return self._plan.mode == "diloco"

    def _next_end(self) -> int:
        options = self._plan.strategy
        return round_end(
            self.committed,
            total=self._plan.steps,
            every=options.sync_every,
            post_local_after=options.post_local_after,
        )


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _as_bytes(kept: Tensor) -> bytes:
    data: bytes = kept.numpy().tobytes()
    return data


DONE = "done"  # steps of each shard


class ShardedFedavg(ShardedRounds):
    """Elastic FedAvg. `committed` counts rounds.

    The drawn shards start from the common parameters with a fresh optimizer, make their steps, and are
    averaged by the samples that they used, in the order of shards; the others have weight 0 and keep their
    state. The draw follows from the seed and the number of the round, so the bits are those of plain fedavg
    with one worker per shard.
    """

    def __init__(self, plan: Plan, links: Links, sharing: ShardSharing | None = None) -> None:
        super().__init__(plan, links, sharing)
        self._draw = draws_of(plan)
        self._rank = links.rank
        self._workers = links.world_size

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """`clock` rounds of the run are committed."""
        if self._saved:
            self._draw.number = int(clock)
            self._draw.done = [int(steps) for steps in self._saved.pop(DONE)]
        super().prepare(replica, clock)
        self._drawn = self._draw.current()
        self._own_shards = self._next_shards()

    @property
    def steps_done(self) -> int:
        return sum(self._draw.done) // len(self._draw.done)

    def snapshot(self) -> dict[str, Tensor]:
        return {**super().snapshot(), DONE: torch.tensor(self._draw.done)}

    def restore(self, saved: dict[str, Tensor]) -> None:
        super().restore(dict(saved))

    def _commit(self, apply_ns: int) -> Outcome:
        self._publish_idle_shards()
        outcome = super()._commit(apply_ns)
        if outcome.stop or outcome.is_last:
            self.settle()  # the last trained shards may have counted further than others
        return outcome

    def _publish_idle_shards(self) -> None:
        """Publish shards that were not drawn, divided among the workers: weight 0 and unchanged state."""
        for shard in range(self._rank, len(self._slots), self._workers):
            if shard not in self._drawn:
                self._slots[shard].zero_()
                self._finished[shard] = self.kept_by(shard)

    def _next_end(self) -> int:
        return self.committed + 1

    def _is_all_done(self) -> bool:
        return not self._drawn

    def _next_shards(self) -> Sequence[int]:
        if self._draw.number < self.committed:
            self._draw.finish()
            self._drawn = self._draw.current()
        clients = sorted(self._drawn)
        return [clients[place] for place in self._sharing.own_shards() if place < len(clients)]

    def _load_shard(self, shard: int) -> None:
        self._live = None  # another round may have been made since
        super()._load_shard(shard)
        self._replica.forget_optimizer_state()

    def _share(self, shard: int) -> WorkUnit:
        return WorkUnit(shard, self._draw.done[shard] + self._made)

    def _is_over(self, shard: int) -> bool:
        return self._made >= self._drawn[shard]

    def _weight(self, shard: int) -> float:
        """The factor before an unweighted mean over all shards: V times the shard's part of the samples."""
        batches = self._plan.batch_sizes
        used = {client: batches[client] * steps for client, steps in self._drawn.items()}
        return used[shard] * self._plan.num_workers / sum(used.values())

    def _version(self) -> int:
        return self._draw.number
