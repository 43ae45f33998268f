"""What is the same for all who share memory on one host, however they wait for each other?

Vectors live in a memory file that grows as participants allocate, and no wait
is longer than its limit. How a post arrives is said in shm.py and generation_world.py.
"""

import mmap
import os
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from paceline.errors import SilenceError

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
