"""How does everybody hold what each shard keeps for itself, so that any survivor can go on with any shard?

Each shard's own bytes (its optimizer's state) lie in a slot of shared memory
beside its parameters. There are two banks of slots, used in turn, and a bank is
written only between the two meetings of an averaging. Who is still at the round
before keeps the others from coming to that point again: so the bank of the last
round that a worker committed is whole, whenever and wherever others die. A
survivor simply goes on holding it, also when the generation is over.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.ids import Rank
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.memory_world import PAGE
from paceline.transport.ports import Traffic
from paceline.transport.shm_shards import ShmShards

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
        self._room, self._commits = 0, 0

    def commit(self, own: Mapping[int, bytes]) -> tuple[Traffic, list[Tensor]]:
        """All slots are filled: the mean is made, and all shards' own bytes are returned, in their order."""
        self._wanted[self.rank] = max(map(len, own.values()), default=0)
        wait_ns = self._meeting.meet()
        self._make_room(int(self._wanted.max()))
        bank, sizes = self._banks[self._commits % BANKS], self._sizes[self._commits % BANKS]
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
        self._banks, self._sizes = [], []
