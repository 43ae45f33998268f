"""Progress display of runs and transfers: a bar on a terminal, lines elsewhere, nothing when silent."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from paceline.core import environ
from paceline.core.clock import unix_now_s
from paceline.core.humanize import short_bytes
from paceline.training.progress import (
    LineWatcher,
    Progress,
    SilentWatcher,
    Watcher,
    eta_text,
    speed_text,
)
from paceline.training.session import Session

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_REDRAWS_PER_S = 4
_PARTS = 10  # lines of a transfer outside a terminal


@contextmanager
def open_watcher(session: Session, run: str) -> Iterator[Watcher]:
    if session.is_silent:
        yield SilentWatcher()
        return
    with _open_display(session, run) as watcher:
        yield _IgnoresWriteErrors(watcher)


class _IgnoresWriteErrors:
    """A closed terminal or pipe does not end the run."""

    def __init__(self, inner: Watcher) -> None:
        self._inner = inner

    def progress(self, progress: Progress) -> None:
        with suppress(OSError):
            self._inner.progress(progress)

    def note(self, text: str) -> None:
        with suppress(OSError):
            self._inner.note(text)


@contextmanager
def _open_display(session: Session, run: str) -> Iterator[Watcher]:
    if sys.stderr.isatty() and not environ.is_ci() and environ.wants_colour(is_tty=True):
        with open_bar(run, colour=session.has_colour(sys.stderr)) as bar:
            yield bar
    else:
        yield LineWatcher(sys.stderr, now_s=unix_now_s)


class BarWatcher:
    def __init__(self, bar: "Bar", task: "TaskID") -> None:
        self._bar = bar
        self._task = task

    def progress(self, progress: Progress) -> None:
        self._bar.update(
            self._task, completed=progress.step, total=progress.total_steps, state=_bar_text(progress)
        )

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)


@contextmanager
def open_bar(run: str, *, colour: bool, console: "Console | None" = None) -> Iterator[BarWatcher]:
    # Imported here: rich takes longer to import than the rest of the command.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    screen = Console(stderr=True, no_color=not colour) if console is None else console
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Bar(*columns, console=screen, refresh_per_second=_REDRAWS_PER_S) as bar:
        yield BarWatcher(bar, bar.add_task(run, total=None, state="starting workers"))


def _bar_text(progress: Progress) -> str:
    loss = "" if progress.loss is None else f"loss {progress.loss:.4g}  "
    workers = f"{progress.workers_alive}/{progress.num_workers} workers"
    return f"{loss}{workers}  {speed_text(progress)}  eta {eta_text(progress)}"


@contextmanager
def open_byte_watcher(session: Session, title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields a callback that takes the bytes received and the total, if known."""
    if session.is_silent:
        yield lambda *_: None
    elif sys.stderr.isatty() and not environ.is_ci() and environ.wants_colour(is_tty=True):
        with _open_byte_bar(session, title) as on_bytes:
            yield on_bytes
    else:
        yield ByteLines(sys.stderr, title)


@contextmanager
def _open_byte_bar(session: Session, title: str) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    screen = Console(stderr=True, no_color=not session.has_colour(sys.stderr))
    with Progress(*columns, TransferSpeedColumn(), console=screen) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class ByteLines:
    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream = stream
        self._title = title
        self._shown = 0

    def __call__(self, done: int, total: int | None) -> None:
        if total is None or _PARTS * done // total <= self._shown:
            return
        self._shown = _PARTS * done // total
        text = f"{self._title}: {short_bytes(done)} of {short_bytes(total)}, {100 * done // total}%"
        print(text, file=self._stream, flush=True)
