"""Rounds: every worker holds each shard's own state, complete, for as long as it may be needed."""

import os
from functools import partial

import pytest
import torch
from tests.fixtures.processes.forks import in_processes, values
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.sync.shard_balancing import shards_of
from paceline.transport.generation.memory import GenerationWorld
from paceline.transport.shm_collective import ShmRounds

SHARDS, NUMEL = 3, 100


def own_bytes(shard: int, commit: int) -> bytes:
    """Longer and longer, so that the room must grow now and then."""
    return bytes([shard + 10 * commit]) * (1 + shard + 3000 * commit)


def rounds(fd: int, rank: int, parties: int) -> ShmRounds:
    world = GenerationWorld(
        os.dup(fd), rank, parties=parties, semaphores_each=4, words_each=1, is_over=lambda: False
    )
    return ShmRounds(world, Rank(rank), shards=SHARDS, clock=SystemClock(), timeout_s=10.0, word=0)


def as_bytes(kept: list[Tensor]) -> list[bytes]:
    return [slot.numpy().tobytes() for slot in kept]


def commit_often(fd: int, parties: int, rank: int) -> bytes:
    meeting = rounds(fd, rank, parties)
    slots, mean = meeting.allocate(NUMEL, torch.float64)
    mine = shards_of(rank, workers=parties, shards=SHARDS)
    before: list[Tensor] = []
    for commit in range(6):
        for shard in mine:
            slots[shard].fill_(shard + commit)
        _, kept = meeting.commit({shard: own_bytes(shard, commit) for shard in mine})
        assert as_bytes(kept) == [own_bytes(shard, commit) for shard in range(SHARDS)]
        assert bool((mean == 1 + commit).all())
        if before:  # who had not got through this time would need these
            assert as_bytes(before) == [own_bytes(shard, commit - 1) for shard in range(SHARDS)]
        before = kept
    meeting.close()
    return b"".join(as_bytes(before))  # they outlive the meeting


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_what_shards_keep_is_seen_by_all_and_the_round_before_stays_whole(parties: int) -> None:
    fd = os.memfd_create("test")
    try:
        text = values(in_processes(parties, partial(commit_often, fd, parties)))
    finally:
        os.close(fd)
    assert text == [b"".join(own_bytes(shard, 5) for shard in range(SHARDS))] * parties


def test_what_was_kept_outlives_the_generation() -> None:
    fd, is_over = os.memfd_create("test"), False
    world = GenerationWorld(
        os.dup(fd), 0, parties=1, semaphores_each=4, words_each=1, is_over=lambda: is_over
    )
    alone = ShmRounds(world, Rank(0), shards=SHARDS, clock=SystemClock(), timeout_s=10.0, word=0)
    alone.allocate(NUMEL, torch.float64)
    _, kept = alone.commit({shard: own_bytes(shard, 1) for shard in range(SHARDS)})
    alone.check()
    is_over = True
    with pytest.raises(PeerLostError):
        alone.check()
    world.close()
    alone.close()
    os.close(fd)
    assert as_bytes(kept) == [own_bytes(shard, 1) for shard in range(SHARDS)]
