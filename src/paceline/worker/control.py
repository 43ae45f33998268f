"""How does a supervisor see its workers' progress, and ask them to stop, at no cost per step?

A few numbers in memory shared by fork: each worker writes its own row, the
supervisor reads them all and owns the stop word. Nobody waits for anybody.
"""

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_STEPS, _LOSS = 0, 1
_COLUMNS = 2


class ControlBlock:
    def __init__(self, num_workers: int) -> None:
        memory = mmap.mmap(-1, 8 * (1 + num_workers * _COLUMNS))
        numbers: NDArray[np.float64] = np.frombuffer(memory, dtype=np.float64)
        self._stop = numbers[:1]
        self.rows = numbers[1:].reshape(num_workers, _COLUMNS)

    def ask_to_stop(self) -> None:
        self._stop[0] = 1.0

    @property
    def stop_is_asked(self) -> bool:
        return bool(self._stop[0])

    def steps(self) -> list[int]:
        return [int(row[_STEPS]) for row in self.rows]

    def mean_loss(self) -> float | None:
        """The mean of the latest losses of the workers that have begun."""
        begun = [row[_LOSS] for row in self.rows if row[_STEPS] > 0]
        return float(np.mean(begun)) if begun else None


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

    def finished_step(self, steps: int, loss: float) -> None:
        self._row[_LOSS] = loss
        self._row[_STEPS] = steps
