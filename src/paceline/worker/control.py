"""Control block: progress of the workers and requests of their supervisor, in shared memory.

A few numbers in memory that is shared by fork or by the name of a file. Each worker writes its own row; the
supervisor reads all rows and writes the requests: stop or pause the run, let a worker leave or save. There
are no locks and no waits, so a step pays nothing for it.
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
        self._stop = numbers[:1]
        self._pause = numbers[1:2]
        self.ended_at = numbers[2:3]
        self.last_saved = numbers[3:4]
        self._alone = numbers[4:_HEAD]
        self.rows = numbers[_HEAD:].reshape(num_workers, _COLUMNS)

    def ask_to_stop(self) -> None:
        self._stop[0] = 1.0

    @property
    def is_stop_requested(self) -> bool:
        return bool(self._stop[0])

    def give_up_coordinator(self) -> None:
        """The run ends without its coordinator: no participant waits for an answer of it any more."""
        self._alone[0] = 1.0

    @property
    def is_without_coordinator(self) -> bool:
        return bool(self._alone[0])

    def pause(self, is_paused: bool, saver: int | None) -> None:
        """Pause or continue the run; `saver`, one of the remaining workers, saves its state."""
        self._pause[0] = float(is_paused)
        if saver is not None:
            self.rows[saver, _SAVE] = 1.0

    @property
    def is_paused(self) -> bool:
        return bool(self._pause[0])

    def ask_to_save(self) -> None:
        """Request a save; the request stays visible to a worker that takes over saving."""
        self.rows[:, _SAVE] = 1.0

    def ask_to_leave(self, worker: int) -> None:
        self.rows[worker, _LEAVE] = 1.0

    def ask_nothing(self, worker: int) -> None:
        """Clear the requests to an earlier process of this name."""
        self.rows[worker, _LEAVE] = self.rows[worker, _SAVE] = 0.0

    def continue_steps(self, worker: int, steps: int) -> None:
        """A replacement continues the count of a process that was lost on another host."""
        self.rows[worker, _STEPS] = max(self.rows[worker, _STEPS], steps)

    @property
    def end(self) -> tuple[int, bool]:
        """What workers publish to the others at the end: steps committed, and whether they are saved."""
        return int(self.ended_at[0]), bool(self.last_saved[0])

    def receive_end(self, committed: int, *, is_saved: bool) -> None:
        """The same, from workers of another host."""
        self.ended_at[0] = max(self.ended_at[0], committed)
        self.last_saved[0] = max(self.last_saved[0], float(is_saved))

    def steps(self) -> list[int]:
        return [int(row[_STEPS]) for row in self.rows]

    def mean_loss(self) -> float | None:
        """The mean of the latest losses of the workers that have begun."""
        losses = [row[_LOSS] for row in self.rows if row[_STEPS] > 0]
        return float(np.mean(losses)) if losses else None


def _mapped(file: str, size: int) -> mmap.mmap:
    fd = os.open(file, os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, size)  # the first process grows it, the others find it grown
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


class WorkerControl:
    """One worker's side of the block."""

    def __init__(self, block: ControlBlock, rank: int, note: Callable[[str], None]) -> None:
        self._block = block
        self.note = note
        self._row = block.rows[rank]

    @property
    def finished(self) -> int:
        """Steps last written here, by this worker or by one that it replaces."""
        return int(self._row[_STEPS])

    def wants_stop(self) -> bool:
        return self._block.is_stop_requested

    def wants_leave(self) -> bool:
        return bool(self._row[_LEAVE])

    def is_without_coordinator(self) -> bool:
        return self._block.is_without_coordinator

    def is_paused(self) -> bool:
        return self._block.is_paused

    def report_end(self, committed: int) -> None:
        """Record a normal end after `committed` steps of the run; a worker that joins now is too late."""
        self._block.ended_at[0] = committed

    def ended_at(self) -> int:
        """Steps of the run after which a worker ended normally; 0 if none has."""
        return int(self._block.ended_at[0])

    def report_saved(self) -> None:
        """The last checkpoint of the run is written, and catalogued if that was possible."""
        self._block.last_saved[0] = 1.0

    def is_saved(self) -> bool:
        return bool(self._block.last_saved[0])

    def takes_save(self) -> bool:
        """Whether a save was requested since the last call."""
        is_asked = bool(self._row[_SAVE])
        self._row[_SAVE] = 0.0
        return is_asked

    def finished_step(self, steps: int, loss: float) -> None:
        self._row[_LOSS] = loss
        self._row[_STEPS] = steps
