"""How is a run shown while it goes? A bar on a terminal, now and then a line elsewhere, or nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from paceline import environ
from paceline.app.progress import SilentWatcher, Watcher
from paceline.cli.session import Session
from paceline.cli.watch_lines import LineWatcher
from paceline.clock import unix_now_s


@contextmanager
def open_watcher(session: Session, run: str) -> Iterator[Watcher]:
    if session.is_silent:
        yield SilentWatcher()
    elif sys.stderr.isatty() and not environ.is_ci() and environ.wants_colour(is_tty=True):
        # Imported here: rich costs as much as the rest of the command together.
        from paceline.cli.watch_bar import open_bar

        with open_bar(run, colour=session.has_colour(sys.stderr)) as bar:
            yield bar
    else:
        yield LineWatcher(sys.stderr, now_s=unix_now_s)
