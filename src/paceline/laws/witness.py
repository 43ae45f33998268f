"""Recording links: a server store and a collective that pass calls on and record them in order.

They sit between a strategy and its parameter server, or between a strategy and its peers, so laws see what
was really sent rather than what a log claims.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.ids import Clock, Rank
from paceline.transport.ports import Collective, ParameterStore, PullResult, Revocable, Slots, Traffic
from paceline.transport.torch_dist import ring_bytes


@dataclass(frozen=True, slots=True)
class Act:
    what: str  # join, pull, push, again, over
    rank: int
    version: int = -1
    wait_ns: int = 0


@dataclass(slots=True)
class Witness:
    """All acts of all workers, and their clocks: how many gradients each has handed over."""

    acts: list[Act] = field(default_factory=list)
    clocks: dict[int, int] = field(default_factory=dict)  # of those who take part
    left: set[int] = field(default_factory=set)
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    on_pull: Callable[[int, Slots], None] = lambda _rank, _slots: None
    on_push: Callable[[int], None] = lambda _rank: None

    @classmethod
    def of(cls, num_workers: int) -> "Witness":
        return cls(clocks=dict.fromkeys(range(num_workers), 0))

    def active(self) -> dict[int, int]:
        return {rank: clock for rank, clock in self.clocks.items() if rank not in self.left}

    def gap(self) -> int:
        """Between the fastest and the slowest of those who take part."""
        clocks = self.active().values()
        return max(clocks) - min(clocks) if clocks else 0

    def wrap(self, rank: Rank, store: ParameterStore) -> ParameterStore:
        return _WitnessedStore(self, rank, store)


class _WitnessedStore:
    def __init__(self, witness: Witness, rank: Rank, store: ParameterStore) -> None:
        self._witness = witness
        self._rank = rank
        self._store = store
        self._slots: Slots | None = None

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        self._slots = self._store.open(numel, dtype, push_bytes)
        return self._slots

    def join(self, clock: Clock) -> None:
        self._witness.acts.append(Act("join", self._rank))
        self._store.join(clock)

    def pull(self) -> PullResult:
        pulled = self._store.pull()
        seen = self._witness
        slots = self._slots
        assert slots is not None, "open() comes first"
        if pulled.position is None:
            seen.left.add(self._rank)
            seen.acts.append(Act("over", self._rank))
            return pulled
        seen.acts.append(Act("pull", self._rank, pulled.version, pulled.traffic.wait_ns))
        seen.pulled_bytes += slots.parameters.nbytes
        seen.on_pull(self._rank, slots)
        return pulled

    def push(self, *, wants_stop: bool) -> Traffic:
        seen = self._witness
        slots = self._slots
        assert slots is not None, "open() comes first"
        seen.acts.append(Act("push", self._rank))
        seen.pushed_bytes += slots.gradients.nbytes
        seen.clocks[self._rank] += 1
        seen.on_push(self._rank)
        return self._store.push(wants_stop=wants_stop)

    def is_obsolete(self) -> bool:
        return self._revocable().is_obsolete()

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        return self._revocable().wait_unless_obsolete(duration_s)

    def again(self) -> None:
        self._witness.acts.append(Act("again", self._rank))
        self._revocable().again()

    def _revocable(self) -> Revocable:
        assert isinstance(self._store, Revocable), "every store can take a share back"
        return self._store

    def leave(self) -> None:
        self._witness.left.add(self._rank)
        self._store.leave()

    def close(self) -> None:
        self._store.close()


@dataclass(slots=True)
class CollectiveWitness:
    """What was handed to the collectives of all workers; what they receive is as much.

    Not what they are given before the first step: that belongs to no step.
    """

    moved_bytes: int = 0

    def wrap(self, _: Rank, collective: Collective) -> Collective:
        return _WitnessedCollective(self, collective)


class _WitnessedCollective:
    def __init__(self, witness: CollectiveWitness, collective: Collective) -> None:
        self.rank = collective.rank
        self.world_size = collective.world_size
        self._witness = witness
        self._collective = collective

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._collective.allocate(numel, dtype)

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        self._witness.moved_bytes += ring_bytes(vector.nbytes, self.world_size)
        return self._collective.all_reduce_mean(vector)

    def broadcast(self, vector: Tensor) -> Traffic:
        return self._collective.broadcast(vector)

    def gather(
        self,
        vector: Tensor,
        sources: Sequence[Rank] | None = None,
        targets: Sequence[Rank] | None = None,
    ) -> tuple[list[Tensor], Traffic]:
        receivers = targets if targets is not None else sources
        if receivers is None:
            receivers = [Rank(rank) for rank in range(self.world_size)]
        self._witness.moved_bytes += vector.nbytes * sum(rank != self.rank for rank in receivers)
        return self._collective.gather(vector, sources, targets)

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        self._witness.moved_bytes += vector.nbytes - vector.nbytes // self.world_size
        return self._collective.swap(vector)

    def close(self) -> None:
        self._collective.close()
