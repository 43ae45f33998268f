"""Peers in shared memory: pairwise averaging on one host, without a server and without barriers.

Every worker's vector lies in shared memory, with a lock of its own. A worker
holds only the two locks that an averaging needs; the others continue. The common
counters (shares taken, exchanges made, the stop flag) have one more lock, held
briefly and always acquired last. A lock is a semaphore that is posted once: if
its holder dies, the others' waits end with the timeout, or with the abort of the
run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.clock import Clock
from paceline.core.ids import Rank
from paceline.transport.ports import LockedVectors, Traffic
from paceline.transport.shm import SharedWorld

SEMAPHORES = 4
_FIRST, _SECOND, _VECTOR, _COMMON = range(SEMAPHORES)  # barriers alternate between the first two
WORDS = 4
_TAKEN, _END, _EXCHANGES, _STOP = range(WORDS)  # common to all, in rank 0's row


def peers_world(num_workers: int) -> SharedWorld:
    world = SharedWorld(parties=num_workers, semaphores_each=SEMAPHORES, words_each=WORDS)
    for rank in range(num_workers):
        world.post(rank, _VECTOR)
    world.post(0, _COMMON)
    return world


class ShmPeers:
    def __init__(self, world: SharedWorld, rank: Rank, *, clock: Clock, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world.parties
        self._world = world
        self._clock = clock
        self._timeout_s = timeout_s
        self._common = world.words[0]
        self._vectors: tuple[Tensor, ...] = ()
        self._barriers = 0

    def open(self, numel: int, dtype: torch.dtype, *, shares: int, done: int) -> Tensor:
        self._vectors = tuple(self._world.map_vectors(self.world_size, numel, dtype))
        if self.rank == 0:  # the others read this only after a barrier
            self._common[[_TAKEN, _END, _EXCHANGES, _STOP]] = done, shares, done, 0
        return self._vectors[self.rank]

    @contextmanager
    def hold(self, ranks: Sequence[Rank], *, is_exchange: bool) -> Iterator[LockedVectors]:
        held: list[Rank] = []
        started_ns = self._clock.now_ns()
        try:
            for rank in ranks:
                self._world.wait(rank, _VECTOR, self._timeout_s, awaited=f"worker {rank}'s parameters")
                held.append(rank)
            wait_ns = self._clock.now_ns() - started_ns
            # Counted while the vectors are locked: exchanges of one vector are numbered in their order.
            number = self._count_exchange() if is_exchange else int(self._common[_EXCHANGES])
            yield LockedVectors(tuple(self._vectors[rank] for rank in ranks), number, wait_ns)
        finally:
            for rank in reversed(held):
                self._world.post(rank, _VECTOR)

    def take(self, *, wants_stop: bool) -> int | None:
        with self._locked_counters() as common:
            if wants_stop:
                common[_STOP] = 1
            taken = int(common[_TAKEN])
            if common[_STOP] or taken >= common[_END]:
                return None
            common[_TAKEN] = taken + 1
            return taken

    def barrier(self) -> tuple[tuple[Tensor, ...], Traffic]:
        index = (_FIRST, _SECOND)[self._barriers & 1]
        self._barriers += 1
        peers = [rank for rank in range(self.world_size) if rank != self.rank]
        for other in peers:
            self._world.post(other, index)
        started_ns = self._clock.now_ns()
        for _ in peers:
            self._world.wait(self.rank, index, self._timeout_s, awaited="the other workers")
        moved = self._vectors[0].nbytes * len(peers)
        return self._vectors, Traffic(moved, moved, self._clock.now_ns() - started_ns)

    def shares_taken(self) -> int:
        return int(self._common[_TAKEN])

    def close(self) -> None:
        self._vectors = ()

    def _count_exchange(self) -> int:
        with self._locked_counters() as common:
            common[_EXCHANGES] += 1
            return int(common[_EXCHANGES])

    @contextmanager
    def _locked_counters(self) -> Iterator[NDArray[np.int64]]:
        self._world.wait(0, _COMMON, self._timeout_s, awaited="the count of shares and exchanges")
        try:
            yield self._common
        finally:
            self._world.post(0, _COMMON)
