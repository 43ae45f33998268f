"""How is a vector averaged over logical shards, whoever computed them, always to the same bits?

Every shard has a slot in shared memory, and there is one more for the mean.
Everybody meets; worker r of W averages piece r of all slots, in the order of
the shards, into the last slot; everybody meets again. So the number of workers
changes who adds up which piece, and never the sum.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.errors import PeerLostError
from paceline.ids import Rank
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.meeting import Meeting
from paceline.transport.ports import Traffic
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_collective import BLOCK, piece_of


class ShmShards:
    def __init__(
        self, world: SharedWorld | GenerationWorld, rank: Rank, *, shards: int, clock: Clock, timeout_s: float
    ) -> None:
        self.rank, self.world_size, self.shards = rank, world.parties, shards
        self._world = world
        self._meeting = Meeting(world, rank, clock=clock, timeout_s=timeout_s)

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
        """A slot for every shard, and one for the mean."""
        *self._slots, self._mean = self._world.map_vectors(self.shards + 1, numel, dtype)
        start, end = piece_of(self.rank, numel, self.world_size)
        self._blocks = [slice(low, min(low + BLOCK, end)) for low in range(start, end, BLOCK)]
        self._traffic_bytes = (numel - (end - start)) * dtype.itemsize
        return self._slots, self._mean

    def check(self) -> None:
        if self._world.is_aborted:
            raise PeerLostError("the generation ended between two steps", "the run goes on in the next one")

    def mean(self) -> Traffic:
        """All slots are filled, by whomever: afterwards the mean is in its own slot, until the next call."""
        wait_ns = self._meeting.meet()
        for block in self._blocks:
            total = self._mean[block]
            total.copy_(self._slots[0][block])
            for slot in self._slots[1:]:
                total.add_(slot[block])
            total.div_(self.shards)
        wait_ns += self._meeting.meet()
        return Traffic(self._traffic_bytes, self._traffic_bytes, wait_ns)

    def settle(self) -> None:
        self._meeting.meet()

    def close(self) -> None:
        self._slots, self._blocks = [], []
