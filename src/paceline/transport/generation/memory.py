"""Shared memory of one generation of an elastic run, whose workers may die at any time.

The same interface as in ../shm.py (memory, counted posts, a switch that ends all
waits), but created during the run by processes that already exist: rank 0 makes an
unnamed memory file, the others open it through /proc. It vanishes with the last
process. Each counter has one writer, so a dead process leaves no lock behind.

Waiting uses futexes: unlike a semaphore a futex needs nothing but the number in
memory, so processes that were not forked from each other can wait on it. A wait
also polls at intervals, so no lost wake-up blocks for ever.

`GenerationBoard` and `GenerationWindow` exchange numbers at a barrier: each worker
writes its own row before it and reads all rows after it. There are two sets of rows,
used alternately: a worker that is one barrier ahead writes rows that no worker reads
any more, because it could not have passed the barrier in between.
"""

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_int, c_long, c_uint32, c_void_p
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.clock import ActiveTimeout
from paceline.core.errors import NotReadyError, PeerLostError
from paceline.transport.generation.ports import BoardRow
from paceline.transport.shm import PAGE, MemoryWorld

_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98}
_WAIT = 0
_WAKE = 1
_ALL_WAITERS = 2**31 - 1


class _Timespec(Structure):
    _fields_ = (("seconds", c_long), ("nanoseconds", c_long))


_libc = ctypes.CDLL(None, use_errno=True)
# Without argument types ctypes would truncate the address to 32 bits.
_libc.syscall.argtypes = [c_long, c_void_p, c_int, c_uint32, POINTER(_Timespec), c_void_p, c_uint32]
_libc.syscall.restype = c_long


def futex_wait(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32-bit number at the address is `value`, until a wake-up or the timeout."""
    seconds = int(timeout_s)
    until = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
    if _libc.syscall(_syscall_number(), address, _WAIT, value, ctypes.byref(until), None, 0) == -1:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code))


def futex_wake(address: int) -> None:
    """Wake all processes that sleep on this number."""
    _libc.syscall(_syscall_number(), address, _WAKE, _ALL_WAITERS, None, None, 0)


@cache
def _syscall_number() -> int:
    machine = platform.machine()
    if machine not in _SYSCALL_NUMBERS:
        raise NotReadyError(
            f"shared-memory waits are not supported on {machine}", "use --transport gloo on this machine"
        )
    return _SYSCALL_NUMBERS[machine]


POLL_S = 0.02


class GenerationWorld(MemoryWorld):
    """`parties` processes with `semaphores_each` counters to wait on and `words_each` integers apiece."""

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
        self.rank = rank
        self._is_over = is_over
        counts = parties * semaphores_each * parties  # posts, by waiter, semaphore and poster
        size = 4 * counts + 4 * parties * semaphores_each + 8 * (parties * words_each) + 64
        end = -(-size // PAGE) * PAGE
        super().__init__(fd, parties=parties, end=end)
        os.posix_fallocate(fd, 0, end)
        self._memory = mmap.mmap(fd, end)
        self.words: NDArray[np.int64] = np.frombuffer(
            self._memory, dtype=np.int64, count=parties * words_each
        ).reshape(parties, words_each)
        # Single numbers are accessed many times a step: numpy would take several times as long.
        self._numbers = memoryview(self._memory).cast("I")
        self._semaphores = semaphores_each
        self._first_post = 2 * parties * words_each
        self._first_futex = self._first_post + counts
        self._taken = [0] * semaphores_each
        self._base = self.words.ctypes.data

    def post(self, party: int, index: int) -> None:
        numbers = self._numbers
        semaphore = party * self._semaphores + index
        own = self._first_post + semaphore * self.parties + self.rank
        count = (numbers[own] + 1) & 0xFFFFFFFF
        numbers[own] = count  # this process is its only writer
        # Any change of the futex wakes the waiter; the value, and which process wrote it, does not matter.
        numbers[self._first_futex + semaphore] = ((self.rank & 0xFF) << 24) | (count & 0xFFFFFF)
        futex_wake(self._base + 4 * (self._first_futex + semaphore))

    def is_posted(self, party: int, index: int, timeout_s: float | None, *, awaited: str) -> bool:
        """Wait for one post; whether it arrived in time. PeerLostError when the generation is over."""
        assert party == self.rank, "a process waits on its own semaphores only"
        timeout = None if timeout_s is None else ActiveTimeout(timeout_s)
        semaphore = party * self._semaphores + index
        posts = self._first_post + semaphore * self.parties
        futex = self._first_futex + semaphore
        while True:
            value = self._numbers[futex]
            if sum(self._numbers[posts : posts + self.parties]) > self._taken[index]:
                self._taken[index] += 1
                return True
            if self._is_over():
                raise PeerLostError(
                    f"the generation ended while waiting for {awaited}", "the run continues in the next one"
                )
            left_s = POLL_S if timeout is None else min(POLL_S, timeout.next_s())
            if left_s <= 0:
                return False
            futex_wait(self._base + 4 * futex, value, left_s)

    @property
    def is_aborted(self) -> bool:
        return self._is_over()

    def wake_all(self) -> None:
        """Wake this process's own waits, so that they check at once whether the generation is over."""
        for index in range(self._semaphores):
            futex_wake(self._base + 4 * (self._first_futex + self.rank * self._semaphores + index))


BOARD_NUMBERS = len(BoardRow._fields)
BOARD_ROW_WORDS = 2 * BOARD_NUMBERS


class GenerationBoard:
    """One row of numbers per worker, exchanged at every barrier."""

    def __init__(self, world: GenerationWorld, first_word: int) -> None:
        self._rows = [
            world.words[:, start : start + BOARD_NUMBERS]
            for start in (first_word, first_word + BOARD_NUMBERS)
        ]
        self._rank = world.rank
        self.parties = world.parties
        self._barriers = 0

    def write(self, row: BoardRow) -> None:
        self._rows[self._barriers & 1][self._rank] = row

    def read(self) -> Sequence[BoardRow]:
        """All rows, by rank; once after each barrier, before the next write."""
        rows = self._rows[self._barriers & 1]
        self._barriers += 1
        return [BoardRow(*map(int, row)) for row in rows]


class GenerationWindow:
    """The latest step times of each worker, exchanged at the barriers of decisions."""

    def __init__(self, world: GenerationWorld, kept: int) -> None:
        """Space for `kept` numbers of each worker; all parties make this call at the same point."""
        rows = world.map_vectors(2, world.parties * (1 + kept), torch.float64)
        self._rows = [row.view(world.parties, 1 + kept).numpy() for row in rows]
        self._rank = world.rank
        self._exchanges = 0

    def write(self, seconds: Sequence[float]) -> None:
        row = self._rows[self._exchanges & 1][self._rank]
        row[0] = len(seconds)
        row[1 : 1 + len(seconds)] = seconds

    def read(self) -> list[list[float]]:
        """All windows, by rank; once after each barrier that this worker wrote for."""
        rows = self._rows[self._exchanges & 1]
        self._exchanges += 1
        return [[float(own_s) for own_s in row[1 : 1 + int(row[0])]] for row in rows]
