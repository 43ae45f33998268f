"""`paceline workers` and `paceline stop`: list, add and remove workers of a run, and inject faults."""

import getpass
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import act_from_anywhere, only_beside_the_run
from paceline.cli.options import changed_run_argument, common_options, worker_names
from paceline.cli.output import confirm, emit, print_message, yes_option
from paceline.core.errors import ConfigError, ExitCode, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.run_endpoint import Coordinators
    from paceline.faults.actions.request import ActionRequest, Step
    from paceline.faults.workers import Resized, Target, Workforce
    from paceline.plan.codec import Json


def run_action(
    session: Session,
    run: Path,
    action: str,
    worker: str = "",
    *,
    factor: float = 4.0,
    for_s: float = 30.0,
    force: bool = False,
) -> ExitCode:
    from paceline.faults.actions.executor import ActionExecutor
    from paceline.faults.actions.request import ActionKind, ActionRequest, Phase

    progress = _ActionProgress(session)
    request = ActionRequest(
        id=uuid.uuid4().hex,
        kind=ActionKind(action),
        worker=worker,
        factor=factor,
        for_s=for_s,
        is_forced=force,
        by=getpass.getuser(),
        source="cli",
    )
    executor = ActionExecutor(session.folder / run, request, progress.add)
    last = executor.run()
    progress.emit_result(str(run), request)
    if (next_command := _next_command(action, run, worker)) and last.phase is Phase.EFFECT_SEEN:
        print_message(session, f"next: {next_command}")
    try:
        for holder in executor.holders:  # they end with this command
            holder.wait()
    finally:
        for holder in executor.holders:
            if holder.stdin is not None:
                holder.stdin.close()
            holder.wait()
    return ExitCode.OK if last.phase is Phase.EFFECT_SEEN else ExitCode.DEGRADED


def run_action_anywhere(
    session: Session, run: Path, action: str, coordinators: "Coordinators | None"
) -> ExitCode:
    """An action on a whole run: through the coordinator if one is named, else beside the run's command."""
    if coordinators is None:
        return run_action(session, run, action)
    from paceline.faults.actions.remote_request import request_remotely
    from paceline.faults.actions.request import ActionKind, ActionRequest, Phase
    from paceline.faults.workers import RunAt

    progress = _ActionProgress(session)
    request = ActionRequest(id=uuid.uuid4().hex, kind=ActionKind(action), by=getpass.getuser(), source="cli")
    last = request_remotely(RunAt(coordinators, run.name), request, progress.add)
    progress.emit_result(str(run), request)
    return ExitCode.OK if last.phase is Phase.EFFECT_SEEN else ExitCode.DEGRADED


class _ActionProgress:
    """Prints the steps of an action, and at its end the result."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps: list[Step] = []

    def add(self, step: "Step") -> None:
        self._steps.append(step)
        text = step.phase.value.replace("_", " ")
        print_message(self._session, f"{text}: {step.note}" if step.note else text)

    def emit_result(self, run: str, request: "ActionRequest") -> None:
        last = self._steps[-1]
        data: Json = {
            "run": run,
            "action": request.kind.value,
            "target": request.worker,
            "phase": last.phase.value,
            "steps": [step.json() for step in self._steps],
        }
        emit(self._session, "action", data, [last.note])


def _next_command(action: str, run: Path, worker: str) -> str:
    match action:
        case "stop":
            return f"paceline train --resume {run}"
        case "pause" | "slow":
            return f"paceline workers resume {run} {worker}"
        case "partition":
            return f"paceline workers heal {run}"
        case "kill" | "resume" | "heal":
            return f"paceline events {run} --follow"
        case _:
            return ""


_wait = click.option("--wait/--no-wait", default=True, help="Wait until the workers train. [default: wait]")
_within = click.option(
    "--timeout",
    "within_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Timeout in seconds.",
)


@click.group("workers")
@common_options
def workers(session: Session) -> None:
    """List, add, remove, pause or kill workers of a live run."""


def _target(session: Session, run: Path, coordinators: "Coordinators | None") -> "Target":
    from paceline.faults.workers import RunAt

    return session.folder / run if coordinators is None else RunAt(coordinators, run.name)


@workers.command("list")
@changed_run_argument
@common_options
@act_from_anywhere
def list_workers(session: Session, run: Path, coordinators: "Coordinators | None") -> None:
    """List the workers of RUN and the current generation.

    RUN is a run folder, or with --coordinator the name or id of a run there.
    """
    from paceline.faults.workers import read_workforce

    workforce = read_workforce(_target(session, run, coordinators))
    data: Json = {
        "run": str(run),
        "generation": workforce.generation,
        "why": workforce.why,
        "workers": list(workforce.workers),
        "min_workers": workforce.min_workers,
        "max_workers": workforce.max_workers,
    }
    emit(session, "workers.list", data, _worker_lines(workforce))


@workers.command("add")
@changed_run_argument
@click.argument("count", type=click.IntRange(1, 1024), default=1)
@_wait
@_within
@common_options
@act_from_anywhere
def add(
    session: Session,
    run: Path,
    count: int,
    wait: bool,
    within_s: float,
    coordinators: "Coordinators | None",
) -> None:
    """Add COUNT workers to RUN, and wait until they train."""
    from paceline.faults import workers as operations

    target = _target(session, run, coordinators)
    _show(session, "add", run, operations.add(target, count, wait=wait, within_s=within_s))


@workers.command("remove")
@changed_run_argument
@click.argument("which", shell_complete=worker_names, default="1", metavar="[WORKER|COUNT]")
@_wait
@_within
@common_options
@act_from_anywhere
def remove(
    session: Session,
    run: Path,
    which: str,
    wait: bool,
    within_s: float,
    coordinators: "Coordinators | None",
) -> None:
    """Remove a worker, or COUNT of the newest, from RUN after a step; they are not replaced."""
    from paceline.faults import workers as operations

    count = int(which) if which.isdecimal() else 1
    if count < 1:
        raise ConfigError(
            [Problem("0 workers cannot be removed", "name a worker, or a number from 1", "WORKER|COUNT")]
        )
    name = "" if which.isdecimal() else which
    target = _target(session, run, coordinators)
    resized = operations.remove(target, count, name, wait=wait, within_s=within_s)
    _show(session, "remove", run, resized)


_for = click.option(
    "--for", "for_s", type=float, default=30.0, show_default=True, help="Duration in seconds, at most 300."
)


@workers.command("kill")
@changed_run_argument
@click.argument("worker", shell_complete=worker_names)
@click.option("--force", is_flag=True, help="Proceed even if this ends the run.")
@yes_option
@common_options
@only_beside_the_run
def kill(session: Session, run: Path, worker: str, force: bool, yes: bool) -> ExitCode:
    """Kill (kill -9) WORKER of RUN and report the recovery; for experiments."""
    if not confirm(session, f"kill {worker} of {run}", yes=yes):
        return ExitCode.INTERRUPTED
    return run_action(session, run, "kill", worker, force=force)


@workers.command("pause")
@changed_run_argument
@click.argument("worker", shell_complete=worker_names)
@_for
@common_options
@only_beside_the_run
def pause(session: Session, run: Path, worker: str, for_s: float) -> ExitCode:
    """Pause WORKER of RUN for a while; Ctrl-C resumes it at once."""
    return run_action(session, run, "pause", worker, for_s=for_s)


@workers.command("resume")
@changed_run_argument
@click.argument("worker", shell_complete=worker_names)
@common_options
@only_beside_the_run
def resume(session: Session, run: Path, worker: str) -> ExitCode:
    """Resume WORKER of RUN, even if another command paused it."""
    return run_action(session, run, "resume", worker)


@workers.command("slow")
@changed_run_argument
@click.argument("worker", shell_complete=worker_names)
@click.option("--factor", type=float, default=4.0, show_default=True, help="Slowdown factor.")
@_for
@common_options
@only_beside_the_run
def slow(session: Session, run: Path, worker: str, factor: float, for_s: float) -> ExitCode:
    """Slow down WORKER of RUN for a while; Ctrl-C restores its speed at once."""
    return run_action(session, run, "slow", worker, factor=factor, for_s=for_s)


@workers.command("partition")
@changed_run_argument
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--force", is_flag=True, help="Proceed even if quorum or too many workers would be lost.")
@_for
@common_options
@only_beside_the_run
def partition(session: Session, run: Path, names: tuple[str, ...], force: bool, for_s: float) -> ExitCode:
    """Partition nodes and workers of RUN (node-1, worker-0) from all others; Ctrl-C heals it at once.

    A partitioned worker reaches no coordinator; a partitioned node exchanges no messages. Needs an elastic
    run of this machine. The nodes heal the partition by their own clocks, even if this command dies.
    """
    return run_action(session, run, "partition", ",".join(names), force=force, for_s=for_s)


@workers.command("heal")
@changed_run_argument
@common_options
@only_beside_the_run
def heal(session: Session, run: Path) -> ExitCode:
    """Heal all partitions of RUN, including those of other commands."""
    return run_action(session, run, "heal")


def _show(session: Session, verb: str, run: Path, resized: "Resized") -> None:
    data: Json = {"run": str(run), **asdict(resized), "workers": list(resized.workers)}
    lines = [resized.note]
    if resized.is_seen:
        lines.append(f"now training: {', '.join(resized.workers)}")
    emit(session, f"workers.{verb}", data, lines)


def _worker_lines(workforce: "Workforce") -> list[str]:
    bounds = f"{len(workforce.workers)} workers ({workforce.min_workers} to {workforce.max_workers})"
    head = f"generation {workforce.generation}, {bounds}: {workforce.why}"
    rows = [
        f"{row['worker']:<12}{row['state']:<10}"
        f"rank {'-' if row['rank'] is None else row['rank']}  {row['host']} pid {row['pid']}  "
        f"since {row['since_s']} s"
        for row in workforce.workers
    ]
    return [head, *rows]


@click.command("stop")
@changed_run_argument
@common_options
@act_from_anywhere
def stop(session: Session, run: Path, coordinators: "Coordinators | None") -> ExitCode:
    """Stop RUN after its current step, with a checkpoint, and wait until it has stopped.

    RUN is a run folder, or with --coordinator the name or id of an elastic run there.
    """
    return run_action_anywhere(session, run, "stop", coordinators)
