"""Collectives of logical ranks in the shared memory of a generation: `ShmRanks`.

Every rank's vector lies in shared memory, so the operations are those of
`ShmCollective`, with as many vectors as there are ranks, and a barrier of the
workers, each of which has some ranks. The pieces that a worker averages depend on
the number of workers; which vectors are added, and in which order, does not. So the
bits are those of as many workers as there are ranks.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.ids import Rank
from paceline.sync.shard_balancing import shards_of
from paceline.transport.ports import Traffic
from paceline.transport.shm import Barrier, MemoryWorld
from paceline.transport.shm_collective import BLOCK, mean_in_place, piece_of, pieces


@dataclass(slots=True)
class _Group:
    """The vectors of all ranks that were allocated together."""

    vectors: list[Tensor]
    blocks: list[list[Tensor]] = field(default_factory=list)  # this worker's piece of all of them


class ShmRanks:
    def __init__(self, world: MemoryWorld, worker: Rank, barrier: Barrier, *, ranks: int) -> None:
        """`barrier`: one that all workers of the world use in the same order."""
        self.own = shards_of(worker, workers=world.parties, shards=ranks)
        self.world_size = ranks
        self._world = world
        self._worker = worker
        self._barrier = barrier
        self._groups: list[_Group] = []
        self._group_of: dict[int, _Group] = {}  # by the address of a vector of this worker's ranks
        self._allocated = dict.fromkeys(self.own, 0)  # by rank: its vectors so far

    def allocate(self, rank: Rank, numel: int, dtype: torch.dtype) -> Tensor:
        number = self._allocated[rank]
        self._allocated[rank] += 1
        if number == len(self._groups):
            self._groups.append(self._map(numel, dtype))
        group = self._groups[number]
        vector = group.vectors[rank]
        assert vector.numel() == numel, "all ranks allocate the same vectors in the same order"
        self._group_of[vector.data_ptr()] = group
        return vector

    def _map(self, numel: int, dtype: torch.dtype) -> _Group:
        vectors = self._world.map_vectors(self.world_size, numel, dtype)
        start, end = piece_of(self._worker, numel, self._world.parties)
        return _Group(
            vectors,
            [[vector[low : min(low + BLOCK, end)] for vector in vectors] for low in range(start, end, BLOCK)],
        )

    def collect(self, slots: Sequence[Tensor], filled: Collection[int], *, everywhere: bool) -> Traffic:
        """The slots are shared: wait until they are filled."""
        wait_ns = self._barrier.wait()
        if not everywhere:
            return Traffic(wait_ns=wait_ns)
        vector_bytes = slots[0].nbytes
        bytes_out = vector_bytes * len(filled) * (self._world.parties - 1)
        return Traffic(bytes_out, vector_bytes * (len(slots) - len(filled)), wait_ns)

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        wait_ns = self._barrier.wait()
        for block in self._group_of[vector.data_ptr()].blocks:
            mean_in_place(block)
        wait_ns += self._barrier.wait()
        start, end = piece_of(self._worker, vector.numel(), self._world.parties)
        # Out: the other pieces of the own ranks' vectors, and the own piece's mean into the other ranks'.
        others = self.world_size - len(self.own)
        numel = (vector.numel() - (end - start)) * len(self.own) + (end - start) * others
        moved = numel * vector.element_size()
        return Traffic(moved, moved, wait_ns)

    def gather(self, vector: Tensor) -> tuple[list[Tensor], Traffic]:
        wait_ns = self._barrier.wait()
        copies = [other.clone() for other in self._group_of[vector.data_ptr()].vectors]
        wait_ns += self._barrier.wait()  # only then may any rank write again
        own = len(self.own)
        bytes_out = vector.nbytes * own * (self._world.parties - 1)
        return copies, Traffic(bytes_out, vector.nbytes * (self.world_size - own), wait_ns)

    def swap(self, vector: Tensor) -> tuple[list[Tensor], Traffic]:
        vectors = self._group_of[vector.data_ptr()].vectors
        wait_ns = self._barrier.wait()
        parts = [pieces(other, self.world_size) for other in vectors]
        received = [torch.cat([part[rank] for part in parts]) for rank in self.own]
        wait_ns += self._barrier.wait()
        own = len(self.own)
        moved = vector.nbytes // self.world_size * own * (self.world_size - own)
        return received, Traffic(moved, moved, wait_ns)

    def plain_bytes(self, vector: Tensor) -> int:
        start, end = piece_of(self._worker, vector.numel(), self._world.parties)
        return (vector.numel() - (end - start)) * vector.element_size()
