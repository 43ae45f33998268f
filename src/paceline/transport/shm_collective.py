"""How do processes on one host average a vector without copying it anywhere?

Each rank's vector lies in shared memory. Everybody meets; rank r averages
piece r of all vectors, in rank order, and writes the mean back into all of
them; everybody meets again. Each rank reads (N-1)/N of the bytes from others
and writes as many to others, the same as a ring. One rank alone computes each
piece, so all ranks end with the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.ids import Rank
from paceline.transport.ports import Traffic
from paceline.transport.shm import SharedWorld

SEMAPHORES = 2  # meetings alternate between two, so a fast rank's next arrival is not miscounted
BLOCK = 1 << 15  # elements; the pieces of all ranks then stay in the core's cache
ALIGN = 16


@dataclass(frozen=True, slots=True)
class _Shared:
    """One allocation: everybody's vector, and our piece of all of them, in blocks."""

    everybody: list[Tensor]
    blocks: list[list[Tensor]]
    traffic_bytes: int


class ShmCollective:
    def __init__(self, world: SharedWorld, rank: Rank, *, clock: Clock, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world.parties
        self._world = world
        self._clock = clock
        self._timeout_s = timeout_s
        self._meetings = 0
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
        wait_ns = self._meet()
        for block in shared.blocks:
            mean_in_place(block)
        wait_ns += self._meet()
        return Traffic(shared.traffic_bytes, shared.traffic_bytes, wait_ns)

    def broadcast(self, vector: Tensor) -> Traffic:
        shared = self._shared[vector.data_ptr()]
        wait_ns = self._meet()
        if self.rank != 0:
            vector.copy_(shared.everybody[0])
        wait_ns += self._meet()
        if self.rank != 0:
            return Traffic(0, vector.nbytes, wait_ns)
        return Traffic(vector.nbytes * (self.world_size - 1), 0, wait_ns)

    def gather(self, vector: Tensor, sources: Sequence[Rank] | None = None) -> tuple[list[Tensor], Traffic]:
        everybody = self._shared[vector.data_ptr()].everybody
        chosen = range(self.world_size) if sources is None else sources
        wait_ns = self._meet()
        copies = [everybody[rank].clone() for rank in chosen]
        wait_ns += self._meet()  # only then may anyone write again
        moved = vector.nbytes * sum(rank != self.rank for rank in chosen)
        return copies, Traffic(moved, moved, wait_ns)

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        everybody = self._shared[vector.data_ptr()].everybody
        wait_ns = self._meet()
        received = torch.cat([pieces(other, self.world_size)[self.rank] for other in everybody])
        wait_ns += self._meet()
        moved = vector.nbytes - vector.nbytes // self.world_size
        return received, Traffic(moved, moved, wait_ns)

    def close(self) -> None:
        self._shared.clear()

    def _meet(self) -> int:
        """Return once all ranks have come here; how long that took."""
        which = self._meetings & 1
        self._meetings += 1
        for other in range(self.world_size):
            if other != self.rank:
                self._world.post(other, which)
        started_ns = self._clock.now_ns()
        for _ in range(self.world_size - 1):
            self._world.wait(self.rank, which, self._timeout_s, what="the other workers")
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
