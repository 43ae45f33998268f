"""How is a run shown while it goes? A bar on a terminal, now and then a line elsewhere, or nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from paceline import environ
from paceline.app.progress import Progress, SilentWatcher, Watcher
from paceline.cli.session import Session
from paceline.cli.watch_lines import LineWatcher
from paceline.clock import unix_now_s


@contextmanager
def open_watcher(session: Session, run: str) -> Iterator[Watcher]:
    if session.is_silent:
        yield SilentWatcher()
        return
    with _opened(session, run) as watcher:
        yield _Steady(watcher)


class _Steady:
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
def _opened(session: Session, run: str) -> Iterator[Watcher]:
    if sys.stderr.isatty() and not environ.is_ci() and environ.wants_colour(is_tty=True):
        # Imported here: rich costs as much as the rest of the command together.
        from paceline.cli.watch_bar import open_bar

        with open_bar(run, colour=session.has_colour(sys.stderr)) as bar:
            yield bar
    else:
        yield LineWatcher(sys.stderr, now_s=unix_now_s)
