"""Progress bar of a run on a terminal (rich): loss, speed and time left."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from paceline.training.progress import Progress, eta_text, speed_text

_REDRAWS_PER_S = 4


class BarWatcher:
    def __init__(self, bar: Bar, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def progress(self, progress: Progress) -> None:
        self._bar.update(
            self._task, completed=progress.step, total=progress.total_steps, state=_state(progress)
        )

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)


@contextmanager
def open_bar(run: str, *, colour: bool, console: Console | None = None) -> Iterator[BarWatcher]:
    screen = Console(stderr=True, no_color=not colour) if console is None else console
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Bar(*columns, console=screen, refresh_per_second=_REDRAWS_PER_S) as bar:
        yield BarWatcher(bar, bar.add_task(run, total=None, state="starting workers"))


def _state(progress: Progress) -> str:
    loss = "" if progress.loss is None else f"loss {progress.loss:.4g}  "
    workers = f"{progress.workers_alive}/{progress.num_workers} workers"
    return f"{loss}{workers}  {speed_text(progress)}  eta {eta_text(progress)}"
