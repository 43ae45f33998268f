"""Shared memory of one host: mapped vectors, semaphores, an abort switch, and a barrier.

A `SharedWorld` is made before the processes are forked; they inherit it, so it
has no name, needs no clean-up, and vanishes with the last process even after
`kill -9`. Vectors live in a memory file that grows as participants allocate.
Processes wait on semaphores: no polling, every wait has a limit, and POSIX makes
what was written before a post visible after the wait. generation_world.py
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

# Vectors live in a memory file that grows as participants allocate, and no wait
# is longer than its limit. How a post arrives is said in shm.py and generation_world.py.

PAGE = mmap.PAGESIZE


class MemoryWorld(ABC):
    def __init__(self, fd: int, *, parties: int, end: int = 0) -> None:
        self.parties = parties
        self._fd = fd
        self._end = end  # of what is mapped by now

    @property
    @abstractmethod
    def is_aborted(self) -> bool:
        """Is all over? Then every wait fails."""

    @abstractmethod
    def post(self, party: int, which: int) -> None:
        """One wait of this party, at this place of its own, is over."""

    @abstractmethod
    def is_posted(self, party: int, which: int, timeout_s: float | None, *, what: str) -> bool:
        """Wait for one post, and say whether it came in time; PeerLostError when all is over."""

    def wait(self, party: int, which: int, timeout_s: float | None, *, what: str) -> None:
        """Wait for one post; PeerLostError when all is over or nobody posts in time."""
        if not self.is_posted(party, which, timeout_s, what=what):
            raise SilenceError(
                f"waited {timeout_s:g} s for {what}, and nothing came",
                "look at the other workers' logs; raise --timeout if a step may take this long",
            )

    def map_vectors(self, count: int, numel: int, dtype: torch.dtype) -> list[Tensor]:
        """`count` shared vectors. Every party makes the same calls in the same order."""
        stride = -(-numel * dtype.itemsize // PAGE) * PAGE
        size = count * stride
        # Grows the file and never shrinks it, so the parties need not take turns.
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

    def post(self, party: int, which: int) -> None:
        self._semaphores[party][which].release()

    def is_posted(self, party: int, which: int, timeout_s: float | None, *, what: str) -> bool:
        """Wait for one post, and say whether it came in time; PeerLostError when the run is aborted."""
        arrived = self._is_acquired(self._semaphores[party][which], timeout_s)
        if self.is_aborted:
            raise PeerLostError(
                f"the run was aborted while waiting for {what}",
                "another process of the run failed first; its log says why",
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
        """Wake everybody who waits; their waits then fail."""
        self._abort[0] = 1
        for own in self._semaphores:
            for semaphore in own:
                self._release_all(semaphore)

    def _release_all(self, semaphore: Semaphore) -> None:
        for _ in range(self.parties):
            semaphore.release()


BARRIER_SLOTS = 2  # used in turn, so that a fast one's next arrival is not miscounted


class Barrier:
    """Meetings of all parties of a world, at two of its places to wait."""

    def __init__(
        self, world: MemoryWorld, rank: int, *, clock: Clock, timeout_s: float, first_place: int = 0
    ) -> None:
        self._world = world
        self._rank = rank
        self._first = first_place
        self._clock = clock
        self._timeout_s = timeout_s
        self._count = 0

    def meet(self) -> int:
        """Return once all are here; how long that took, in nanoseconds."""
        which = self._first + (self._count & 1)
        self._count += 1
        for other in range(self._world.parties):
            if other != self._rank:
                self._world.post(other, which)
        started_ns = self._clock.now_ns()
        for _ in range(self._world.parties - 1):
            self._world.wait(self._rank, which, self._timeout_s, what="the other workers")
        return self._clock.now_ns() - started_ns
