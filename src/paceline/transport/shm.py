"""Shared memory of one host: mapped vectors, semaphores, an abort switch, and a barrier.

A `SharedWorld` is made before the processes are forked; they inherit it, so it
has no name, needs no clean-up, and vanishes with the last process even after
`kill -9`. Vectors live in a memory file that grows as participants allocate.
Processes wait on semaphores: no polling, every wait has a limit, and POSIX makes
what was written before a post visible after the wait. generation/memory.py
implements the same interface for processes that were not forked from each other.
"""

import mmap
import os
from abc import ABC, abstractmethod
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.clock import ActiveTimeout, Clock
from paceline.core.errors import PeerLostError, SilenceError

PAGE = mmap.PAGESIZE


class MemoryWorld(ABC):
    """Vectors in shared memory, and posts to wait for; each party has its own semaphores (`index`)."""

    def __init__(self, fd: int, *, parties: int, end: int = 0) -> None:
        self.parties = parties
        self._fd = fd
        self._end = end  # of the mapped part of the file

    @property
    @abstractmethod
    def is_aborted(self) -> bool:
        """Whether the world was aborted. Then every wait fails."""

    @abstractmethod
    def post(self, party: int, index: int) -> None:
        """Release one wait of this party on this semaphore."""

    @abstractmethod
    def is_posted(self, party: int, index: int, timeout_s: float | None, *, awaited: str) -> bool:
        """Wait for one post; whether it arrived in time. PeerLostError when the world is aborted."""

    def wait(self, party: int, index: int, timeout_s: float | None, *, awaited: str) -> None:
        """Wait for one post; PeerLostError when the world is aborted or no post arrives in time."""
        if not self.is_posted(party, index, timeout_s, awaited=awaited):
            raise SilenceError(
                f"waited {timeout_s:g} s for {awaited}, and nothing arrived",
                "see the other workers' logs; raise --timeout if a step may take this long",
            )

    def map_vectors(self, count: int, numel: int, dtype: torch.dtype) -> list[Tensor]:
        """`count` shared vectors. Every party makes the same calls in the same order."""
        stride = -(-numel * dtype.itemsize // PAGE) * PAGE
        size = count * stride
        # The file only grows, so the parties need no lock.
        os.posix_fallocate(self._fd, self._end, size)
        memory = mmap.mmap(self._fd, size, offset=self._end)
        self._end += size
        return [torch.frombuffer(memory, dtype=dtype, count=numel, offset=i * stride) for i in range(count)]

    def close(self) -> None:
        os.close(self._fd)


class SharedWorld(MemoryWorld):
    """`parties` processes with `semaphores_each` semaphores and `words_each` integers apiece."""

    def __init__(self, *, parties: int, semaphores_each: int, words_each: int) -> None:
        super().__init__(os.memfd_create("paceline"), parties=parties)
        context = get_context("fork")
        self._semaphores = [[context.Semaphore(0) for _ in range(semaphores_each)] for _ in range(parties)]
        self._words = mmap.mmap(-1, 8 * (1 + parties * words_each))
        numbers: NDArray[np.int64] = np.frombuffer(self._words, dtype=np.int64)
        self._abort = numbers[:1]
        self.words = numbers[1:].reshape(parties, words_each)

    def post(self, party: int, index: int) -> None:
        self._semaphores[party][index].release()

    def is_posted(self, party: int, index: int, timeout_s: float | None, *, awaited: str) -> bool:
        """Wait for one post; whether it arrived in time. PeerLostError when the run is aborted."""
        arrived = self._is_acquired(self._semaphores[party][index], timeout_s)
        if self.is_aborted:
            raise PeerLostError(
                f"the run was aborted while waiting for {awaited}",
                "another process of the run failed first; see its log",
            )
        return arrived

    def _is_acquired(self, semaphore: Semaphore, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return semaphore.acquire(True, None)
        patience = ActiveTimeout(timeout_s)
        while wait_s := patience.next_s():
            if semaphore.acquire(True, wait_s):
                return True
        return semaphore.acquire(False)

    @property
    def is_aborted(self) -> bool:
        return bool(self._abort[0])

    def abort(self) -> None:
        """Wake all waiting processes; their waits then fail."""
        self._abort[0] = 1
        for own in self._semaphores:
            for semaphore in own:
                self._release_all(semaphore)

    def _release_all(self, semaphore: Semaphore) -> None:
        for _ in range(self.parties):
            semaphore.release()


BARRIER_SLOTS = 2  # semaphores used alternately, so that a fast party's next arrival is not miscounted


class Barrier:
    """A barrier of all parties of a world, on two of its semaphores from `first_semaphore` on."""

    def __init__(
        self, world: MemoryWorld, rank: int, *, clock: Clock, timeout_s: float, first_semaphore: int = 0
    ) -> None:
        self._world = world
        self._rank = rank
        self._first = first_semaphore
        self._clock = clock
        self._timeout_s = timeout_s
        self._count = 0

    def wait(self) -> int:
        """Wait until all parties have arrived; how long that took, in nanoseconds."""
        index = self._first + (self._count & 1)
        self._count += 1
        for other in range(self._world.parties):
            if other != self._rank:
                self._world.post(other, index)
        started_ns = self._clock.now_ns()
        for _ in range(self._world.parties - 1):
            self._world.wait(self._rank, index, self._timeout_s, awaited="the other workers")
        return self._clock.now_ns() - started_ns
