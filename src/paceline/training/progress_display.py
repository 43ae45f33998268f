"""Progress display: a bar on a terminal, log lines elsewhere, nothing with --quiet or --json."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from paceline.core import environ
from paceline.core.clock import unix_now_s
from paceline.core.humanize import short_bytes
from paceline.training.progress import LineWatcher, Progress, SilentWatcher, Watcher
from paceline.training.session import Session


@contextmanager
def open_watcher(session: Session, run: str) -> Iterator[Watcher]:
    if session.is_silent:
        yield SilentWatcher()
        return
    with _open_display(session, run) as watcher:
        yield _IgnoresWriteErrors(watcher)


class _IgnoresWriteErrors:
    """What cannot be shown, because the terminal or the reader of a pipe is gone, does not end the run."""

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
        # Imported here: rich costs as much as the rest of the command together.
        from paceline.training.progress_bar import open_bar

        with open_bar(run, colour=session.has_colour(sys.stderr)) as bar:
            yield bar
    else:
        yield LineWatcher(sys.stderr, now_s=unix_now_s)


_PARTS = 10


@contextmanager
def open_byte_watcher(session: Session, what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields what is to be called with the bytes that have come, and with how many there are."""
    if session.is_silent:
        yield lambda *_: None
    elif sys.stderr.isatty() and not environ.is_ci() and environ.wants_colour(is_tty=True):
        with _open_bar(session, what) as on_bytes:
            yield on_bytes
    else:
        yield ByteLines(sys.stderr, what)


@contextmanager
def _open_bar(session: Session, what: str) -> Iterator[Callable[[int, int | None], None]]:
    # Imported here: rich costs as much as the rest of the command together.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    screen = Console(stderr=True, no_color=not session.has_colour(sys.stderr))
    with Progress(*columns, TransferSpeedColumn(), console=screen) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class ByteLines:
    def __init__(self, stream: TextIO, what: str) -> None:
        self._stream = stream
        self._what = what
        self._shown = 0

    def __call__(self, done: int, total: int | None) -> None:
        if total is None or _PARTS * done // total <= self._shown:
            return
        self._shown = _PARTS * done // total
        text = f"{self._what}: {short_bytes(done)} of {short_bytes(total)}, {100 * done // total}%"
        print(text, file=self._stream, flush=True)
