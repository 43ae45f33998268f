"""`paceline workers`: who trains in a run, and more or fewer of them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from paceline.app.workers import Crew, Resized
    from paceline.plan.codec import Json

_wait = click.option("--wait/--no-wait", default=True, help="Until they train so. [default: wait]")
_within = click.option(
    "--timeout",
    "within_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait.",
)


@click.group("workers")
@common_options
def workers(session: Session) -> None:
    """Look at the workers of an elastic run that is at work, and change how many there are."""


@workers.command("list")
@click.argument("run", type=click.Path(path_type=Path))
@common_options
def list_workers(session: Session, run: Path) -> None:
    """Who trains in RUN (a run's folder), and in which generation."""
    from paceline.app.workers import look

    crew = look(session.folder / run)
    data: Json = {
        "run": str(run),
        "generation": crew.generation,
        "why": crew.why,
        "workers": list(crew.workers),
        "min_workers": crew.fewest,
        "max_workers": crew.most,
    }
    emit(session, "workers.list", data, _lines(crew))


@workers.command("add")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("count", type=click.IntRange(1, 1024), default=1)
@_wait
@_within
@common_options
def add(session: Session, run: Path, count: int, wait: bool, within_s: float) -> None:
    """Let COUNT more workers join RUN; returns once they train."""
    from paceline.app import workers as app

    _show(session, "add", run, app.add(session.folder / run, count, wait=wait, within_s=within_s))


@workers.command("remove")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("which", default="1", metavar="[WORKER|COUNT]")
@_wait
@_within
@common_options
def remove(session: Session, run: Path, which: str, wait: bool, within_s: float) -> None:
    """Let a worker, or so many of the newest, leave RUN after a step; they are not replaced."""
    from paceline.app import workers as app

    count = int(which) if which.isdecimal() else 1
    if count < 1:
        raise ConfigError([Problem("0 workers cannot be removed", "name one, or a number", "WORKER|COUNT")])
    name = "" if which.isdecimal() else which
    done = app.remove(session.folder / run, count, name, wait=wait, within_s=within_s)
    _show(session, "remove", run, done)


def _show(session: Session, verb: str, run: Path, done: "Resized") -> None:
    data: Json = {"run": str(run), **asdict(done), "workers": list(done.workers)}
    lines = [done.note]
    if done.is_seen:
        lines.append(f"now training: {', '.join(done.workers)}")
    emit(session, f"workers.{verb}", data, lines)


def _lines(crew: "Crew") -> list[str]:
    bounds = f"{len(crew.workers)} workers ({crew.fewest} to {crew.most})"
    head = f"generation {crew.generation}, {bounds}: {crew.why}"
    rows = [
        f"{row['worker']:<12}{row['state']:<10}"
        f"rank {'-' if row['rank'] is None else row['rank']}  pid {row['pid']}  since {row['since_s']} s"
        for row in crew.workers
    ]
    return [head, *rows]
