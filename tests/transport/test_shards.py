"""Shards: equal bits for any number of workers, and non-finite means are seen by all."""

import pytest
import torch
from tests.fixtures.processes.forks import in_processes, values
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.core.ids import Rank
from paceline.sync.shard_balancing import shards_of
from paceline.transport.shm import BARRIER_SLOTS, SharedWorld
from paceline.transport.shm_collective import BLOCK, ShmShards

SHARDS, NUMEL = 4, BLOCK + 100


def gradient(shard: int, step: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + shard))


def in_shard_order(step: int) -> Tensor:
    total = gradient(0, step)
    for shard in range(1, SHARDS):
        total = total + gradient(shard, step)
    return total / SHARDS


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_mean_has_the_same_bits_for_any_number_of_workers(workers: int) -> None:
    world = SharedWorld(parties=workers, semaphores_each=BARRIER_SLOTS, words_each=1)

    def body(rank: int) -> bytes:
        torch.set_num_threads(1)
        shards = ShmShards(world, Rank(rank), shards=SHARDS, clock=SystemClock(), timeout_s=20)
        slots, mean = shards.allocate(NUMEL, torch.float32)
        for step in range(3):
            for shard in shards_of(rank, workers=workers, shards=SHARDS):
                slots[shard].copy_(gradient(shard, step))
            shards.mean(shards_of(rank, workers=workers, shards=SHARDS))
            shards.settle()
        return mean.numpy().tobytes()

    text = values(in_processes(workers, body))
    assert set(text) == {in_shard_order(2).numpy().tobytes()}
    world.close()


def test_all_see_at_which_step_the_mean_was_not_finite() -> None:
    world = SharedWorld(parties=2, semaphores_each=BARRIER_SLOTS, words_each=1)

    def body(rank: int) -> bytes:
        torch.set_num_threads(1)
        shards = ShmShards(world, Rank(rank), shards=SHARDS, clock=SystemClock(), timeout_s=20)
        shards.checks_finite = True
        slots, _ = shards.allocate(NUMEL, torch.float32)
        seen = []
        for step in range(4):
            for shard in shards_of(rank, workers=2, shards=SHARDS):
                slots[shard].copy_(gradient(shard, step))
                if (shard, step) == (1, 2):
                    slots[shard][NUMEL - 1] = torch.nan  # in the piece that the other one adds up
            shards.mean(shards_of(rank, workers=2, shards=SHARDS))
            seen.append(shards.is_finite())
        return bytes(seen)

    assert values(in_processes(2, body)) == [bytes([True, True, False, True])] * 2
    world.close()
