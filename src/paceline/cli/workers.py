"""`paceline workers`: who trains in a run, more or fewer of them, and what happens without one."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.acting import carry_out
from paceline.cli.asking import is_sure, yes_option
from paceline.cli.completing import worker_names
from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.run_argument import run_argument
from paceline.cli.session import Session
from paceline.errors import ConfigError, ExitCode, Problem

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
    """Look at the workers of a run that is at work, change how many there are, and strike one."""


@workers.command("list")
@run_argument
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
@run_argument
@click.argument("count", type=click.IntRange(1, 1024), default=1)
@_wait
@_within
@common_options
def add(session: Session, run: Path, count: int, wait: bool, within_s: float) -> None:
    """Let COUNT more workers join RUN; returns once they train."""
    from paceline.app import workers as app

    _show(session, "add", run, app.add(session.folder / run, count, wait=wait, within_s=within_s))


@workers.command("remove")
@run_argument
@click.argument("which", shell_complete=worker_names, default="1", metavar="[WORKER|COUNT]")
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


_for = click.option(
    "--for", "for_s", type=float, default=30.0, show_default=True, help="Seconds; at most 300."
)


@workers.command("kill")
@run_argument
@click.argument("worker", shell_complete=worker_names)
@click.option("--force", is_flag=True, help="Also where it ends the run.")
@yes_option
@common_options
def kill(session: Session, run: Path, worker: str, force: bool, yes: bool) -> ExitCode:
    """kill -9 of WORKER of RUN, and how the run went on; for experiments."""
    if not is_sure(session, f"kill {worker} of {run}", yes=yes):
        return ExitCode.INTERRUPTED
    return carry_out(session, run, "kill", worker, force=force)


@workers.command("pause")
@run_argument
@click.argument("worker", shell_complete=worker_names)
@_for
@common_options
def pause(session: Session, run: Path, worker: str, for_s: float) -> ExitCode:
    """Stop WORKER of RUN for a while; Ctrl-C lets it go on at once."""
    return carry_out(session, run, "pause", worker, for_s=for_s)


@workers.command("resume")
@run_argument
@click.argument("worker", shell_complete=worker_names)
@common_options
def resume(session: Session, run: Path, worker: str) -> ExitCode:
    """Let WORKER of RUN go on, whoever holds it."""
    return carry_out(session, run, "resume", worker)


@workers.command("slow")
@run_argument
@click.argument("worker", shell_complete=worker_names)
@click.option("--factor", type=float, default=4.0, show_default=True, help="Times as long.")
@_for
@common_options
def slow(session: Session, run: Path, worker: str, factor: float, for_s: float) -> ExitCode:
    """Make WORKER of RUN slower for a while; Ctrl-C lets it go on at once."""
    return carry_out(session, run, "slow", worker, factor=factor, for_s=for_s)


@workers.command("partition")
@run_argument
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--force", is_flag=True, help="Also where the quorum, or too many workers, would be lost.")
@_for
@common_options
def partition(session: Session, run: Path, names: tuple[str, ...], force: bool, for_s: float) -> ExitCode:
    """Cut nodes and workers of RUN (node-1, worker-0) off from all others; Ctrl-C lets them back in at once.

    A worker that is cut off reaches no coordinator; a node is heard by nobody. Needs an elastic
    run of this machine. The nodes mend it by their own clocks, whatever becomes of this command.
    """
    return carry_out(session, run, "partition", ",".join(names), force=force, for_s=for_s)


@workers.command("heal")
@run_argument
@common_options
def heal(session: Session, run: Path) -> ExitCode:
    """Let everybody who is cut off in RUN back in, whoever wanted it."""
    return carry_out(session, run, "heal")


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
