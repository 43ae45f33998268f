"""Progress of a long command: where it stands, how fast it is now, and the port that shows it."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

WINDOW_S = 30.0  # over which the present speed is measured
SHORTEST_S = 1e-3  # of training that a rate is computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands. `step` is the mean number of steps that its workers have finished."""

    step: int
    total_steps: int
    loss: float | None
    samples_per_s: float | None  # of the last WINDOW_S; None: not measured yet
    workers_alive: int
    num_workers: int
    elapsed_s: float
    steps_per_s: float | None = None  # of the last WINDOW_S; None: not measured yet


class RecentSpeed:
    """Samples and steps per second over the last WINDOW_S of training.

    Counts are totals of this session. A total that falls (a run that went back to a checkpoint)
    restarts the window, so no rate is ever computed across it.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque()  # training clock, samples, steps

    def begin(self, at_s: float) -> None:
        if not self._points:
            self._points.append((at_s, 0.0, 0.0))

    def take(self, at_s: float, samples: float, steps: float) -> None:
        while self._points and self._points[-1][0] > at_s:  # taken while an evaluation held the training up
            self._points.pop()
        if self._points and samples < self._points[-1][1]:
            self._points.clear()
        self._points.append((at_s, samples, steps))
        while len(self._points) > 2 and self._points[1][0] <= at_s - WINDOW_S:
            self._points.popleft()

    @property
    def samples_per_s(self) -> float | None:
        return self._rate(1)

    @property
    def steps_per_s(self) -> float | None:
        return self._rate(2)

    def _rate(self, column: int) -> float | None:
        if len(self._points) < 2:
            return None
        first, last = self._points[0], self._points[-1]
        if last[0] - first[0] < SHORTEST_S:
            return None
        return (last[column] - first[column]) / (last[0] - first[0])


class Watcher(Protocol):
    def progress(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None:
        """One line for a person: a change of state."""
        ...


class SilentWatcher:
    def progress(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None: ...
