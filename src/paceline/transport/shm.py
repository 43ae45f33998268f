"""What do the processes of one host share? Memory, semaphores to wait on, one abort switch.

A `SharedWorld` is made before the processes are forked; they inherit it, so it
has no name, needs no clean-up, and vanishes with the last of them even after
`kill -9`. Vectors live in a memory file that grows as participants allocate.
Waiting is done on semaphores: no polling, and POSIX makes what was written
before a post visible after the wait.
"""

import mmap
import os
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore

import numpy as np
from numpy.typing import NDArray

from paceline.clock import Patience
from paceline.errors import PeerLostError
from paceline.transport.memory_world import MemoryWorld


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
        patience = Patience(timeout_s)
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
