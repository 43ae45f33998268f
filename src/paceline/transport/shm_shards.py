"""How is a vector averaged over logical shards, whoever computed them, always to the same bits?

Every shard has a slot in shared memory, and there is one more for the mean.
Everybody meets; worker r of W averages piece r of all slots, in the order of
the shards, into the last slot; everybody meets again. So the number of workers
changes who adds up which piece, and never the sum.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.clock import Clock
from paceline.errors import PeerLostError
from paceline.ids import Rank
from paceline.transport.meeting import Meeting
from paceline.transport.memory_world import MemoryWorld
from paceline.transport.ports import Traffic
from paceline.transport.shm_collective import BLOCK, piece_of


class ShmShards:
    def __init__(
        self, world: MemoryWorld, rank: Rank, *, shards: int, clock: Clock, timeout_s: float
    ) -> None:
        self.rank, self.world_size, self.shards = rank, world.parties, shards
        self.looks_for_nan = False
        self._world = world
        self._calls = 0
        self._slots: list[Tensor] = []
        self._mean = torch.empty(0)
        self._meeting = Meeting(world, rank, clock=clock, timeout_s=timeout_s)

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
        self._slots, self._blocks = [], []
