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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.clock import Clock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.arena import is_non_finite
from paceline.transport.generation.memory import GenerationWorld
from paceline.transport.ports import Traffic
from paceline.transport.shm import BARRIER_SLOTS, PAGE, Barrier, MemoryWorld, SharedWorld

SEMAPHORES = BARRIER_SLOTS + 1
WORDS = 2
_NEAR = BARRIER_SLOTS  # the semaphore of partial gathers, on which a rank waits for some others only
_READY, _COPIED = range(WORDS)  # words: the last partial gather that this rank has published, and has copied
BLOCK = 1 << 15  # elements; the pieces of all ranks then stay in the core's cache
ALIGN = 16


@dataclass(frozen=True, slots=True)
class _Shared:
    """One allocation: all ranks' vectors, and this rank's piece of all of them, in blocks."""

    vectors: list[Tensor]
    blocks: list[list[Tensor]]
    traffic_bytes: int
    published: list[list[Tensor]] = field(default_factory=list)  # for partial gathers: two sets, alternating


class ShmCollective:
    def __init__(
        self,
        world: SharedWorld | GenerationWorld,
        rank: Rank,
        *,
        clock: Clock,
        timeout_s: float,
        first_semaphore: int = 0,
    ) -> None:
        """`first_semaphore`: first one of the barrier. Partial gathers need a separate world."""
        self.rank = rank
        self.world_size = world.parties
        self._world = world
        self._clock = clock
        self._timeout_s = timeout_s
        self._barrier = Barrier(
            world, rank, clock=clock, timeout_s=timeout_s, first_semaphore=first_semaphore
        )
        self._gathers = 0  # partial ones
        # Targets of the last two partial gathers.
        self._targets: tuple[Sequence[Rank], Sequence[Rank]] = ((), ())
        self._owed = 0  # expected posts of partial gathers that were not taken yet
        self._shared: dict[int, _Shared] = {}  # indexed by the address of this rank's vector

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        vectors = self._world.map_vectors(self.world_size, numel, dtype)
        start, end = piece_of(self.rank, numel, self.world_size)
        blocks = [
            [vector[low : min(low + BLOCK, end)] for vector in vectors] for low in range(start, end, BLOCK)
        ]
        # Out: the other pieces of this rank's vector, read by their owners, and this rank's mean, written to
        # the others. In: the same amounts.
        moved = (numel - (end - start)) + (end - start) * (self.world_size - 1)
        own = vectors[self.rank]
        self._shared[own.data_ptr()] = _Shared(vectors, blocks, moved * dtype.itemsize)
        return own

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        shared = self._shared[vector.data_ptr()]
        wait_ns = self._barrier.wait()
        for block in shared.blocks:
            mean_in_place(block)
        wait_ns += self._barrier.wait()
        return Traffic(shared.traffic_bytes, shared.traffic_bytes, wait_ns)

    def broadcast(self, vector: Tensor) -> Traffic:
        shared = self._shared[vector.data_ptr()]
        wait_ns = self._barrier.wait()
        if self.rank != 0:
            vector.copy_(shared.vectors[0])
        wait_ns += self._barrier.wait()
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
        vectors = self._shared[vector.data_ptr()].vectors
        wait_ns = self._barrier.wait()
        copies = [other.clone() for other in vectors]
        wait_ns += self._barrier.wait()  # only then may any rank write again
        moved = vector.nbytes * (self.world_size - 1)
        return copies, Traffic(moved, moved, wait_ns)

    def _gather_from(
        self, vector: Tensor, sources: Sequence[Rank], targets: Sequence[Rank]
    ) -> tuple[list[Tensor], Traffic]:
        """Published vectors are separate copies, two deep, so that no rank waits here for others to copy."""
        shared = self._shared[vector.data_ptr()]
        if not shared.published:
            pair = (self._world.map_vectors(self.world_size, vector.numel(), vector.dtype) for _ in range(2))
            shared.published.extend(pair)
        senders = [rank for rank in sources if rank != self.rank]
        receivers = [rank for rank in targets if rank != self.rank]
        self._gathers += 1
        number = self._gathers
        published = shared.published[number & 1]
        wait_ns = self._wait_for(_COPIED, number - 2, self._targets[0])
        published[self.rank].copy_(vector)
        self._notify(_READY, number, receivers)
        wait_ns += self._wait_for(_READY, number, senders)
        copies = [published[rank].clone() for rank in sources]
        self._notify(_COPIED, number, senders)
        self._targets = (self._targets[1], receivers)
        return copies, Traffic(vector.nbytes * len(receivers), vector.nbytes * len(senders), wait_ns)

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        vectors = self._shared[vector.data_ptr()].vectors
        wait_ns = self._barrier.wait()
        received = torch.cat([pieces(other, self.world_size)[self.rank] for other in vectors])
        wait_ns += self._barrier.wait()
        moved = vector.nbytes - vector.nbytes // self.world_size
        return received, Traffic(moved, moved, wait_ns)

    def close(self) -> None:
        self._shared.clear()

    def _notify(self, word: int, number: int, peers: Sequence[Rank]) -> None:
        self._world.words[self.rank, word] = number
        for other in peers:
            self._world.post(other, _NEAR)

    def _wait_for(self, word: int, number: int, peers: Sequence[Rank]) -> int:
        """Wait until the `word` of these ranks has reached `number`; how long that took, in nanoseconds.

        A post only signals that some rank has advanced, and a rank ahead may post early; the words
        show which one. Each expected post is taken eventually, so that posts do not accumulate.
        """
        counters = self._world.words
        started_ns = self._clock.now_ns()
        self._owed += len(peers)
        while self._owed > 0 or any(counters[other, word] < number for other in peers):
            self._world.wait(self.rank, _NEAR, self._timeout_s, awaited="neighbours")  # for the next post
            self._owed -= 1
        return self._clock.now_ns() - started_ns


def piece_of(rank: int, numel: int, world_size: int) -> tuple[int, int]:
    """(start, end) of the piece that this rank averages: equal pieces, aligned to cache lines."""
    share = -(-numel // (world_size * ALIGN)) * ALIGN
    return min(rank * share, numel), min((rank + 1) * share, numel)


def pieces(vector: Tensor, world_size: int) -> tuple[Tensor, ...]:
    """The vector in as many equal parts as there are ranks."""
    assert vector.numel() % world_size == 0, "a vector that is swapped divides by the number of ranks"
    return torch.split(vector, vector.numel() // world_size)


def mean_in_place(pieces: Sequence[Tensor]) -> None:
    """Replace every piece by the mean of all, summed in the order given."""
    total = pieces[0]
    for piece in pieces[1:]:
        total.add_(piece)
    total.div_(len(pieces))
    for piece in pieces[1:]:
        piece.copy_(total)


class PieceMean:
    """The mean of one rank's piece of all slots, summed in the order of the shards."""

    def __init__(self, slots: Sequence[Tensor], mean: Tensor, rank: int, world_size: int) -> None:
        start, end = piece_of(rank, mean.numel(), world_size)
        blocks = [slice(low, min(low + BLOCK, end)) for low in range(start, end, BLOCK)]
        self._shards = len(slots)
        self._blocks = [([slot[block] for slot in slots], mean[block]) for block in blocks]
        self._sums = torch.zeros(len(blocks), dtype=mean.dtype)
        self._sum_of = list(self._sums)

    def compute(self, *, checks_finite: bool) -> bool:
        """Write the mean; False if it was checked and is not finite."""
        for number, (parts, total) in enumerate(self._blocks):
            if len(parts) == 1:
                total.copy_(parts[0])
            else:
                torch.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                total.add_(part)
            total.div_(self._shards)
            if checks_finite:  # here, while the block is still in the cache
                torch.sum(total, dim=0, out=self._sum_of[number])
        return not checks_finite or all(map(math.isfinite, self._sums.tolist()))


class ShmShards:
    """The mean over the slots of all shards."""

    def __init__(
        self, world: MemoryWorld, rank: Rank, *, shards: int, clock: Clock, timeout_s: float
    ) -> None:
        self.rank = rank
        self.world_size = world.parties
        self.shards = shards
        self.checks_finite = False
        self._world = world
        self._calls = 0
        self._slots: list[Tensor] = []
        self._mean = torch.empty(0)
        self.barrier = Barrier(world, rank, clock=clock, timeout_s=timeout_s)

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
        """A slot for every shard, and one for the mean; the same ones at every call."""
        if self._slots:
            return self._slots, self._mean
        *self._slots, self._mean = self._world.map_vectors(self.shards + 1, numel, dtype)
        (bad,) = self._world.map_vectors(1, self.world_size, torch.int64)
        self._bad: NDArray[np.int64] = bad.numpy()  # by rank: the last call whose piece was not finite
        self._piece: PieceMean | None = PieceMean(self._slots, self._mean, self.rank, self.world_size)
        start, end = piece_of(self.rank, numel, self.world_size)
        self._traffic_bytes = (numel - (end - start)) * dtype.itemsize
        return self._slots, self._mean

    def check(self) -> None:
        if self._world.is_aborted:
            raise PeerLostError("the generation ended between two steps", "the run continues in the next one")

    def mean(self, own: Collection[int]) -> Traffic:
        """All slots are filled: compute the mean into its slot, where it stays until the next call."""
        wait_ns = self.barrier.wait()
        self._average_own_piece()
        wait_ns += self.barrier.wait()
        return Traffic(self._traffic_bytes, self._traffic_bytes, wait_ns)

    def _average_own_piece(self) -> None:
        assert self._piece is not None, "allocate() comes first"
        self._calls += 1
        if not self._piece.compute(checks_finite=self.checks_finite):
            # Visible to all after the second barrier, and not changed before the next one.
            self._bad[self.rank] = self._calls

    def is_finite(self) -> bool:
        return self._calls not in self._bad.tolist()

    def non_finite(self, own: Collection[int]) -> list[int]:
        return [shard for shard, slot in enumerate(self._slots) if is_non_finite(slot)]

    def settle(self) -> None:
        self.barrier.wait()

    def close(self) -> None:
        self._slots = []
        self._piece = None


BANKS = 2


class ShmRounds(ShmShards):
    """The mean of shards, with each shard's own bytes. `word`: index of the word with a party's slot size.

    `memories`: entries of error memories, if the mean is compressed (shm_ranks.py) and not computed here.
    """

    def __init__(
        self,
        world: GenerationWorld,
        rank: Rank,
        *,
        shards: int,
        clock: Clock,
        timeout_s: float,
        word: int,
        memories: range = range(0),
    ) -> None:
        super().__init__(world, rank, shards=shards, clock=clock, timeout_s=timeout_s)
        self.memories = memories
        self._entries = max(shards, memories.stop)
        self._needed_bytes = world.words[:, word]
        self._banks: list[list[Tensor]] = [[] for _ in range(BANKS)]
        self._sizes: list[Tensor] = []
        self._slot_bytes = -1  # none
        self._commits = 0

    def commit(self, own: Mapping[int, bytes]) -> tuple[Traffic, list[Tensor]]:
        """All slots are filled: compute the mean, and return the bytes of all entries, in their order."""
        self._needed_bytes[self.rank] = max(map(len, own.values()), default=0)
        wait_ns = self.barrier.wait()
        self._grow_slots(int(self._needed_bytes.max()))
        bank = self._banks[self._commits % BANKS]
        sizes = self._sizes[self._commits % BANKS]
        for entry, data in own.items():
            bank[entry].numpy()[: len(data)] = np.frombuffer(data, dtype=np.uint8)
            sizes[entry] = len(data)
        moved_bytes = 0
        if not self.memories:
            self._average_own_piece()
            moved_bytes = self._traffic_bytes
        wait_ns += self.barrier.wait()
        self._commits += 1
        kept = [slot[: int(size)] for slot, size in zip(bank, sizes, strict=True)]
        # Memories are not counted: no other worker reads them, unless one is lost.
        bytes_out = sum(len(data) for entry, data in own.items() if entry not in self.memories)
        bytes_all = sum(slot.numel() for entry, slot in enumerate(kept) if entry not in self.memories)
        traffic = Traffic(moved_bytes + bytes_out, moved_bytes + bytes_all - bytes_out, wait_ns)
        return traffic, kept

    def _grow_slots(self, needed_bytes: int) -> None:
        """Map larger slots; the same decision on all workers. The last round's bank stays valid."""
        if needed_bytes <= self._slot_bytes:
            return
        self._slot_bytes = -(-needed_bytes // PAGE) * PAGE + PAGE  # a number may get another digit
        slots = self._world.map_vectors(BANKS * self._entries, self._slot_bytes, torch.uint8)
        self._banks = [slots[bank * self._entries : (bank + 1) * self._entries] for bank in range(BANKS)]
        self._sizes = self._world.map_vectors(BANKS, self._entries, torch.int64)

    def close(self) -> None:
        super().close()
        self._banks = []
        self._sizes = []
