"""`paceline events`: the events of a run, one line each; --follow waits for new ones."""

import json
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import read_from_anywhere
from paceline.cli.options import common_options, optional_run_argument
from paceline.cli.output import plain_value, print_message
from paceline.training.session import Common, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.plan.codec import Json

POLL_S = 0.2
QUIET_S = 1.0  # the launcher writes every second; only after a longer silence its process is checked


@click.command("events")
@optional_run_argument
@click.option("--follow", "-f", is_flag=True, help="Follow until the run ends or its processes have exited.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Event kind to show. Repeatable.")
@click.option(
    "--last", type=click.IntRange(min=0), metavar="N", help="Number of latest events to start with."
)
@common_options
@read_from_anywhere()
def events(
    session: Session, run: Path | None, follow: bool, kinds: tuple[str, ...], last: int | None
) -> None:
    """Show the events of RUN (a run folder or its store; default: the newest under runs/), oldest first.

    With --json, one JSON object per line; with --plain, seconds, kind and text.
    """
    from paceline.core.clock import SystemClock, monotonic_s
    from paceline.monitoring.view.feed import Feed, FeedPurpose, find_run, is_orphaned

    _check(kinds)
    format_event = _formatter(session.common)
    feed = Feed(find_run(session.folder, run), aim=FeedPurpose.EVENTS)
    is_orphan = False
    pending = feed.view.track.keep_all_events()
    last_line_s = monotonic_s()
    newest = None if last is None else deque["dict[str, Json]"](maxlen=last)  # of the events recorded so far
    while True:
        before = feed.view.seq
        for _ in feed.parts():
            shown = [event for event in pending if not kinds or event["kind"] in kinds]
            pending.clear()
            if newest is not None:
                newest.extend(shown)
                continue
            for event in shown:
                print(format_event(event), flush=True)
        if feed.view.seq > before:
            last_line_s = monotonic_s()
        for event in newest or ():
            print(format_event(event), flush=True)
        newest = None
        if not follow or feed.view.track.is_over:
            return
        was_orphan = is_orphan
        is_orphan = monotonic_s() - last_line_s > QUIET_S and is_orphaned(feed.view.track)
        if was_orphan and is_orphan:  # twice: the last lines have been read in between
            print_message(session, "the run did not finish, and its processes have exited")
            return
        SystemClock().sleep(POLL_S)


def _check(kinds: tuple[str, ...]) -> None:
    """Refuse unknown kinds: they would never match."""
    from paceline.core.errors import ConfigError, Problem
    from paceline.events.schema import PLAIN_KINDS

    unknown = [kind for kind in kinds if kind not in PLAIN_KINDS]
    if unknown:
        hint = f"there are {', '.join(sorted(PLAIN_KINDS))}"
        raise ConfigError([Problem(f"there is no kind {kind!r}", hint, "--kind") for kind in unknown])


def _formatter(common: Common) -> "Callable[[dict[str, Json]], str]":
    if common.json:
        return json.dumps
    return _row if common.plain else _line


def _row(event: "dict[str, Json]") -> str:
    return "\t".join(plain_value(event[name]) for name in ("t_s", "kind", "text"))


def _line(event: "dict[str, Json]") -> str:
    return f"{float(str(event['t_s'])):10.3f}  {event['glyph']} {event['text']}"
