"""How does a supervisor see its workers' progress, and ask them to stop, at no cost per step?

A few numbers in memory shared by fork, or by the name of a file: each worker writes its own row, the
supervisor reads them all and owns what it asks: the run to stop or to pause, a
worker to leave or to save. Nobody waits for anybody.
"""

import mmap
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_STEPS, _LOSS, _LEAVE, _SAVE = range(4)
_COLUMNS = 4
_HEAD = 5


class ControlBlock:
    def __init__(self, num_workers: int, *, file: str | None = None) -> None:
        """`file`: where processes that have no common parent find the same numbers."""
        size = 8 * (_HEAD + num_workers * _COLUMNS)
        memory = mmap.mmap(-1, size) if file is None else _mapped(file, size)
        numbers: NDArray[np.float64] = np.frombuffer(memory, dtype=np.float64)
        self._stop, self._pause, self.ended_at = numbers[:1], numbers[1:2], numbers[2:3]
        self.last_saved, self._alone = numbers[3:4], numbers[4:_HEAD]
        self.rows = numbers[_HEAD:].reshape(num_workers, _COLUMNS)

    def ask_to_stop(self) -> None:
        self._stop[0] = 1.0

    @property
    def stop_is_asked(self) -> bool:
        return bool(self._stop[0])

    def give_up_coordinator(self) -> None:
        """The run ends without its coordinator: no participant waits for an answer of it any more."""
        self._alone[0] = 1.0

    @property
    def is_without_coordinator(self) -> bool:
        return bool(self._alone[0])

    def pause(self, is_paused: bool, saver: int | None) -> None:
        """Or go on; one of those who are left saves what it has."""
        self._pause[0] = float(is_paused)
        if saver is not None:
            self.rows[saver, _SAVE] = 1.0

    @property
    def is_paused(self) -> bool:
        return bool(self._pause[0])

    def ask_to_save(self) -> None:
        """Whoever saves for all, after its next step; the others find it asked when that becomes theirs."""
        self.rows[:, _SAVE] = 1.0

    def ask_to_leave(self, worker: int) -> None:
        self.rows[worker, _LEAVE] = 1.0

    def ask_nothing(self, worker: int) -> None:
        """Whatever was asked of a process before it under this name."""
        self.rows[worker, _LEAVE] = self.rows[worker, _SAVE] = 0.0

    def steps(self) -> list[int]:
        return [int(row[_STEPS]) for row in self.rows]

    def mean_loss(self) -> float | None:
        """The mean of the latest losses of the workers that have begun."""
        begun = [row[_LOSS] for row in self.rows if row[_STEPS] > 0]
        return float(np.mean(begun)) if begun else None


def _mapped(file: str, size: int) -> mmap.mmap:
    fd = os.open(file, os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, size)  # grows it once, whoever is first
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


class WorkerControl:
    """One worker's side of the block."""

    def __init__(self, block: ControlBlock, rank: int, note: Callable[[str], None]) -> None:
        self._block, self.note = block, note
        self._row = block.rows[rank]

    @property
    def finished(self) -> int:
        """What was last said here, by this worker or by one that it replaces."""
        return int(self._row[_STEPS])

    def wants_stop(self) -> bool:
        return self._block.stop_is_asked

    def wants_leave(self) -> bool:
        return bool(self._row[_LEAVE])

    def is_without_coordinator(self) -> bool:
        return self._block.is_without_coordinator

    def is_paused(self) -> bool:
        return self._block.is_paused

    def says_end(self, committed: int) -> None:
        """We ended in good order, with so many steps of the run; who comes now comes too late."""
        self._block.ended_at[0] = committed

    def ended_at(self) -> int:
        """With how many steps somebody ended; 0: nobody has."""
        return int(self._block.ended_at[0])

    def says_saved(self) -> None:
        """The last checkpoint of the run is written, and noted if that was possible."""
        self._block.last_saved[0] = 1.0

    def is_saved(self) -> bool:
        return bool(self._block.last_saved[0])

    def takes_save(self) -> bool:
        """Were we asked to save since the last time?"""
        is_asked = bool(self._row[_SAVE])
        self._row[_SAVE] = 0.0
        return is_asked

    def finished_step(self, steps: int, loss: float) -> None:
        self._row[_LOSS] = loss
        self._row[_STEPS] = steps
