"""When is a line of progress due, and what does it say? For logs and pipes, where nothing may blink."""

from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from paceline.app.progress import Progress
from paceline.cli.units import short_duration, short_number

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
        self._shown_part, self._shown_at_s = part, progress.elapsed_s
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
