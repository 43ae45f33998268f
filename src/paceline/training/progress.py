"""Progress of a long command: where it stands, how fast it is now, and the port that shows it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TextIO

from paceline.core.humanize import short_duration, short_number

WINDOW_S = 30.0  # over which the present speed is measured
MIN_WINDOW_S = 1e-3  # minimum training time for computing a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run. `step` is the mean number of steps that its workers have finished."""

    step: int
    total_steps: int
    loss: float | None
    samples_per_s: float | None  # over the last WINDOW_S; None: not measured yet
    workers_alive: int
    num_workers: int
    elapsed_s: float
    steps_per_s: float | None = None  # over the last WINDOW_S; None: not measured yet


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
        first = self._points[0]
        last = self._points[-1]
        if last[0] - first[0] < MIN_WINDOW_S:
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


_EVERY_S = 10.0
_PARTS = 10  # a line for each tenth of the run


class LineWatcher:
    """One line per 10 % of the steps or per 10 s, whichever comes first."""

    def __init__(self, stream: TextIO, *, now_s: Callable[[], float]) -> None:
        self._stream = stream
        self._now_s = now_s
        self._shown_part = 0
        self._shown_at_s = 0.0

    def progress(self, progress: Progress) -> None:
        part = _PARTS * progress.step // max(1, progress.total_steps)
        if part <= self._shown_part and progress.elapsed_s - self._shown_at_s < _EVERY_S:
            return
        self._shown_part = part
        self._shown_at_s = progress.elapsed_s
        self._write(progress_text(progress))

    def note(self, text: str) -> None:
        self._write(text)

    def _write(self, text: str) -> None:
        stamp = datetime.fromtimestamp(self._now_s()).strftime("%H:%M:%S")
        print(f"{stamp} {text}", file=self._stream, flush=True)


def progress_text(progress: Progress) -> str:
    """`step 400/2000 20% loss 0.412 8/8 workers 3.1k samples/s eta 2m10s`."""
    percent = 100 * progress.step // max(1, progress.total_steps)
    loss = "" if progress.loss is None else f" loss {progress.loss:.4g}"
    return (
        f"step {progress.step}/{progress.total_steps} {percent}%{loss}"
        f" {progress.workers_alive}/{progress.num_workers} workers"
        f" {speed_text(progress)} eta {eta_text(progress)}"
    )


def speed_text(progress: Progress) -> str:
    if progress.samples_per_s is None:
        return "? samples/s"
    return f"{short_number(progress.samples_per_s)} samples/s"


def eta_text(progress: Progress) -> str:
    left = progress.total_steps - progress.step
    if left <= 0:
        return short_duration(0.0)
    if not progress.steps_per_s:  # unknown, or no step within the window
        return "?"
    return short_duration(left / progress.steps_per_s)
