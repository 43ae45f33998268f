"""What do the workers of one generation on a host share, if any of them may die at any moment?

The same as in shm.py (memory, counted posts to wait for, a switch that ends all
waits), but made while the run goes on, by processes that already live: rank 0
makes a memory file without a name, the others open it through /proc. It
vanishes with the last of them. Each number has one writer, so nobody can leave
a lock behind; a wait looks up now and then, so no wake-up can be lost for ever.
"""

import mmap
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paceline.clock import Patience
from paceline.errors import PeerLostError
from paceline.transport import futex
from paceline.transport.memory_world import PAGE, MemoryWorld

LOOK_UP_S = 0.02


class GenerationWorld(MemoryWorld):
    """`parties` processes with `semaphores_each` places to wait at and `words_each` integers apiece."""

    def __init__(
        self,
        fd: int,
        rank: int,
        *,
        parties: int,
        semaphores_each: int,
        words_each: int,
        is_over: Callable[[], bool],
    ) -> None:
        self.rank, self._is_over = rank, is_over
        counts = parties * semaphores_each * parties  # posts, by waiter, place and poster
        size = 4 * counts + 4 * parties * semaphores_each + 8 * (parties * words_each) + 64
        end = -(-size // PAGE) * PAGE
        super().__init__(fd, parties=parties, end=end)
        os.posix_fallocate(fd, 0, end)
        self._memory = mmap.mmap(fd, end)
        self.words: NDArray[np.int64] = np.frombuffer(
            self._memory, dtype=np.int64, count=parties * words_each
        ).reshape(parties, words_each)
        # Single numbers, many times a step: numpy would take several times as long for each.
        self._numbers = memoryview(self._memory).cast("I")
        self._places = semaphores_each
        self._first_post = 2 * parties * words_each
        self._first_bell = self._first_post + counts
        self._taken = [0] * semaphores_each
        self._base = self.words.ctypes.data

    def post(self, party: int, which: int) -> None:
        numbers, place = self._numbers, party * self._places + which
        own = self._first_post + place * self.parties + self.rank
        count = (numbers[own] + 1) & 0xFFFFFFFF
        numbers[own] = count  # ours alone
        # Any other value wakes whoever looked before; who wrote it does not matter.
        numbers[self._first_bell + place] = ((self.rank & 0xFF) << 24) | (count & 0xFFFFFF)
        futex.wake(self._base + 4 * (self._first_bell + place))

    def is_posted(self, party: int, which: int, timeout_s: float | None, *, what: str) -> bool:
        """Wait for one post, and say whether it came in time; PeerLostError when the generation is over."""
        assert party == self.rank, "everybody waits at its own places only"
        patience = None if timeout_s is None else Patience(timeout_s)
        place = party * self._places + which
        posts, at_bell = self._first_post + place * self.parties, self._first_bell + place
        while True:
            bell = self._numbers[at_bell]
            if sum(self._numbers[posts : posts + self.parties]) > self._taken[which]:
                self._taken[which] += 1
                return True
            if self._is_over():
                raise PeerLostError(
                    f"the generation ended while waiting for {what}", "the run goes on in the next one"
                )
            left_s = LOOK_UP_S if patience is None else min(LOOK_UP_S, patience.next_s())
            if left_s <= 0:
                return False
            futex.wait_while(self._base + 4 * at_bell, bell, left_s)

    @property
    def is_aborted(self) -> bool:
        return self._is_over()

    def wake_all(self) -> None:
        """Let our own waits look up at once: the generation is over."""
        for which in range(self._places):
            futex.wake(self._base + 4 * (self._first_bell + self.rank * self._places + which))
