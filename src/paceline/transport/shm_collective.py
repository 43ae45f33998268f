"""Collectives in shared memory: `ShmCollective`, and the means of shards (`ShmShards`, `ShmRounds`).

`ShmCollective`: each rank's vector lies in shared memory. After a barrier rank r
averages piece r of all vectors, in rank order, and writes the mean back into all
of them; a second barrier ends the reduction. Each rank reads (N-1)/N of the bytes
from others and writes as many to others, the same as a ring. One rank alone
computes each piece, so all ranks end with the same bits, and no vector is copied.

`ShmShards`: every shard has a slot in shared memory, and there is one more for the
mean. Between the two barriers worker r of W averages piece r of all slots, in the
order of the shards. So the number of workers changes who adds which piece, never
the sum.

`ShmRounds`: each shard also has a slot for its own bytes (its optimizer's state).
There are two banks of these slots, used alternately, and a bank is written only
between the two barriers of an averaging. A worker that is still at the previous
round keeps the others from reaching that point again, so the bank of a worker's
last committed round is complete, whenever other workers die. A survivor keeps it
mapped, also after the end of the generation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.clock import Clock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.ports import Traffic
from paceline.transport.shm import BARRIER_SLOTS, PAGE, Barrier, MemoryWorld, SharedWorld

SEMAPHORES = BARRIER_SLOTS + 1
WORDS = 2
_NEAR = BARRIER_SLOTS  # the semaphore on which a rank waits for some others only
_READY, _COPIED = range(WORDS)  # words: how many vectors this rank has shown to some, and has copied
BLOCK = 1 << 15  # elements; the pieces of all ranks then stay in the core's cache
ALIGN = 16


@dataclass(frozen=True, slots=True)
class _Shared:
    """One allocation: everybody's vector, and our piece of all of them, in blocks."""

    everybody: list[Tensor]
    blocks: list[list[Tensor]]
    traffic_bytes: int
    shown: list[list[Tensor]] = field(default_factory=list)  # to some: two of everybody's, used in turn


class ShmCollective:
    def __init__(
        self,
        world: SharedWorld | GenerationWorld,
        rank: Rank,
        *,
        clock: Clock,
        timeout_s: float,
        first_place: int = 0,
    ) -> None:
        """`first_place`: where all wait for each other. Gathering from some needs a world of its own."""
        self.rank = rank
        self.world_size = world.parties
        self._world = world
        self._clock = clock
        self._timeout_s = timeout_s
        self._meeting = Barrier(world, rank, clock=clock, timeout_s=timeout_s, first_place=first_place)
        self._gatherings = 0
        self._heard_by: tuple[Sequence[Rank], Sequence[Rank]] = (
            (),
            (),
        )  # at the last two gatherings from some
        self._owed = 0  # posts from some others that were announced and not taken yet
        self._shared: dict[int, _Shared] = {}  # by the address of our own vector

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        everybody = self._world.map_vectors(self.world_size, numel, dtype)
        start, end = piece_of(self.rank, numel, self.world_size)
        blocks = [
            [vector[low : min(low + BLOCK, end)] for vector in everybody] for low in range(start, end, BLOCK)
        ]
        # Out: our other pieces, which their owners read, and our mean, written to the others. In: likewise.
        moved = (numel - (end - start)) + (end - start) * (self.world_size - 1)
        own = everybody[self.rank]
        self._shared[own.data_ptr()] = _Shared(everybody, blocks, moved * dtype.itemsize)
        return own

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        shared = self._shared[vector.data_ptr()]
        wait_ns = self._meeting.meet()
        for block in shared.blocks:
            mean_in_place(block)
        wait_ns += self._meeting.meet()
        return Traffic(shared.traffic_bytes, shared.traffic_bytes, wait_ns)

    def broadcast(self, vector: Tensor) -> Traffic:
        shared = self._shared[vector.data_ptr()]
        wait_ns = self._meeting.meet()
        if self.rank != 0:
            vector.copy_(shared.everybody[0])
        wait_ns += self._meeting.meet()
        if self.rank != 0:
            return Traffic(0, vector.nbytes, wait_ns)
        return Traffic(vector.nbytes * (self.world_size - 1), 0, wait_ns)

    def gather(
        self,
        vector: Tensor,
        sources: Sequence[Rank] | None = None,
        targets: Sequence[Rank] | None = None,
    ) -> tuple[list[Tensor], Traffic]:
        if sources is not None:
            return self._gather_from(vector, sources, sources if targets is None else targets)
        everybody = self._shared[vector.data_ptr()].everybody
        wait_ns = self._meeting.meet()
        copies = [other.clone() for other in everybody]
        wait_ns += self._meeting.meet()  # only then may anyone write again
        moved = vector.nbytes * (self.world_size - 1)
        return copies, Traffic(moved, moved, wait_ns)

    def _gather_from(
        self, vector: Tensor, sources: Sequence[Rank], targets: Sequence[Rank]
    ) -> tuple[list[Tensor], Traffic]:
        """What is shown lies apart, two deep, so that nobody waits here for others to copy it."""
        shared = self._shared[vector.data_ptr()]
        if not shared.shown:
            pair = (self._world.map_vectors(self.world_size, vector.numel(), vector.dtype) for _ in range(2))
            shared.shown.extend(pair)
        heard = [rank for rank in sources if rank != self.rank]
        hearing = [rank for rank in targets if rank != self.rank]
        self._gatherings += 1
        number = self._gatherings
        shown = shared.shown[self._gatherings & 1]
        wait_ns = self._wait_for_some(_COPIED, number - 2, self._heard_by[0])
        shown[self.rank].copy_(vector)
        self._tell_some(_READY, number, hearing)
        wait_ns += self._wait_for_some(_READY, number, heard)
        copies = [shown[rank].clone() for rank in sources]
        self._tell_some(_COPIED, number, heard)
        self._heard_by = (self._heard_by[1], hearing)
        return copies, Traffic(vector.nbytes * len(hearing), vector.nbytes * len(heard), wait_ns)

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        everybody = self._shared[vector.data_ptr()].everybody
        wait_ns = self._meeting.meet()
        received = torch.cat([pieces(other, self.world_size)[self.rank] for other in everybody])
        wait_ns += self._meeting.meet()
        moved = vector.nbytes - vector.nbytes // self.world_size
        return received, Traffic(moved, moved, wait_ns)

    def close(self) -> None:
        self._shared.clear()

    def _tell_some(self, what: int, number: int, others: Sequence[Rank]) -> None:
        self._world.words[self.rank, what] = number
        for other in others:
            self._world.post(other, _NEAR)

    def _wait_for_some(self, what: int, number: int, others: Sequence[Rank]) -> int:
        """Return once these are as far; how long that took.

        A post only says that someone got further, and who is ahead may post early; the words say
        who. Each expected post is taken, sooner or later, so that none pile up.
        """
        words = self._world.words
        started_ns = self._clock.now_ns()
        self._owed += len(others)
        while self._owed > 0 or any(words[other, what] < number for other in others):
            self._world.wait(self.rank, _NEAR, self._timeout_s, what="neighbours")  # for the next post
            self._owed -= 1
        return self._clock.now_ns() - started_ns


def piece_of(rank: int, numel: int, world_size: int) -> tuple[int, int]:
    """Which part of a vector this rank averages: equal shares, cut at cache lines."""
    share = -(-numel // (world_size * ALIGN)) * ALIGN
    return min(rank * share, numel), min((rank + 1) * share, numel)


def pieces(vector: Tensor, world_size: int) -> tuple[Tensor, ...]:
    """The vector in as many equal parts as there are ranks."""
    assert vector.numel() % world_size == 0, "a vector that is swapped divides by the number of ranks"
    return torch.split(vector, vector.numel() // world_size)


def mean_in_place(pieces: Sequence[Tensor]) -> None:
    """Every piece becomes the mean of all, summed in the order given."""
    total = pieces[0]
    for piece in pieces[1:]:
        total.add_(piece)
    total.div_(len(pieces))
    for piece in pieces[1:]:
        piece.copy_(total)


# Every shard has a slot in shared memory, and there is one more for the mean.
# Everybody meets; worker r of W averages piece r of all slots, in the order of
# the shards, into the last slot; everybody meets again. So the number of workers
# changes who adds up which piece, and never the sum.


class ShmShards:
    def __init__(
        self, world: MemoryWorld, rank: Rank, *, shards: int, clock: Clock, timeout_s: float
    ) -> None:
        self.rank = rank
        self.world_size = world.parties
        self.shards = shards
        self.looks_for_nan = False
        self._world = world
        self._calls = 0
        self._slots: list[Tensor] = []
        self._mean = torch.empty(0)
        self._meeting = Barrier(world, rank, clock=clock, timeout_s=timeout_s)

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
        """A slot for every shard, and one for the mean; the same ones when asked again."""
        if self._slots:
            return self._slots, self._mean
        *self._slots, self._mean = self._world.map_vectors(self.shards + 1, numel, dtype)
        (bad,) = self._world.map_vectors(1, self.world_size, torch.int64)
        self._bad: NDArray[np.int64] = bad.numpy()  # by rank: the last call at which its piece was not finite
        start, end = piece_of(self.rank, numel, self.world_size)
        blocks = [slice(low, min(low + BLOCK, end)) for low in range(start, end, BLOCK)]
        self._blocks = [([slot[block] for slot in self._slots], self._mean[block]) for block in blocks]
        self._sums = torch.zeros(len(blocks), dtype=dtype)
        self._sum_of = list(self._sums)
        self._traffic_bytes = (numel - (end - start)) * dtype.itemsize
        return self._slots, self._mean

    def check(self) -> None:
        if self._world.is_aborted:
            raise PeerLostError("the generation ended between two steps", "the run goes on in the next one")

    def mean(self) -> Traffic:
        """All slots are filled, by whomever: afterwards the mean is in its own slot, until the next call."""
        wait_ns = self._meeting.meet()
        self._average_our_piece()
        wait_ns += self._meeting.meet()
        return Traffic(self._traffic_bytes, self._traffic_bytes, wait_ns)

    def _average_our_piece(self) -> None:
        self._calls += 1
        for number, (parts, total) in enumerate(self._blocks):
            if len(parts) == 1:
                total.copy_(parts[0])
            else:
                torch.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                total.add_(part)
            total.div_(self.shards)
            if self.looks_for_nan:  # here, while the block is still in the cache
                torch.sum(total, dim=0, out=self._sum_of[number])
        if self.looks_for_nan and not all(map(math.isfinite, self._sums.tolist())):
            # Seen by all after the second meeting, and not changed before all have met again.
            self._bad[self.rank] = self._calls

    def is_finite(self) -> bool:
        return self._calls not in self._bad.tolist()

    def settle(self) -> None:
        self._meeting.meet()

    def close(self) -> None:
        self._slots = []
        self._blocks = []


# Each shard's own bytes (its optimizer's state) lie in a slot of shared memory
# beside its parameters. There are two banks of slots, used in turn, and a bank is
# written only between the two meetings of an averaging. Who is still at the round
# before keeps the others from coming to that point again: so the bank of the last
# round that a worker committed is whole, whenever and wherever others die. A
# survivor simply goes on holding it, also when the generation is over.

BANKS = 2


class ShmRounds(ShmShards):
    """`word`: the place among each party's words where it says how much room it needs."""

    def __init__(
        self,
        world: GenerationWorld,
        rank: Rank,
        *,
        shards: int,
        clock: Clock,
        timeout_s: float,
        word: int,
    ) -> None:
        super().__init__(world, rank, shards=shards, clock=clock, timeout_s=timeout_s)
        self._wanted = world.words[:, word]
        self._banks: list[list[Tensor]] = [[] for _ in range(BANKS)]
        self._sizes: list[Tensor] = []
        self._room = 0
        self._commits = 0

    def commit(self, own: Mapping[int, bytes]) -> tuple[Traffic, list[Tensor]]:
        """All slots are filled: the mean is made, and all shards' own bytes are returned, in their order."""
        self._wanted[self.rank] = max(map(len, own.values()), default=0)
        wait_ns = self._meeting.meet()
        self._make_room(int(self._wanted.max()))
        bank = self._banks[self._commits % BANKS]
        sizes = self._sizes[self._commits % BANKS]
        for shard, data in own.items():
            bank[shard].numpy()[: len(data)] = np.frombuffer(data, dtype=np.uint8)
            sizes[shard] = len(data)
        self._average_our_piece()
        wait_ns += self._meeting.meet()
        self._commits += 1
        kept = [slot[: int(size)] for slot, size in zip(bank, sizes, strict=True)]
        shown = sum(map(len, own.values()))
        everything = sum(slot.numel() for slot in kept)
        return (
            Traffic(self._traffic_bytes + shown, self._traffic_bytes + everything - shown, wait_ns),
            kept,
        )

    def _make_room(self, wanted: int) -> None:
        """Everybody comes to the same answer. What the last round kept stays where it is, and is whole."""
        if wanted <= self._room:
            return
        self._room = -(-wanted // PAGE) * PAGE + PAGE  # a number may get another digit
        slots = self._world.map_vectors(BANKS * self.shards, self._room, torch.uint8)
        self._banks = [slots[number * self.shards : (number + 1) * self.shards] for number in range(BANKS)]
        self._sizes = self._world.map_vectors(BANKS, self.shards, torch.int64)

    def close(self) -> None:
        super().close()
        self._banks = []
        self._sizes = []
