"""Workers of an elastic run: list them, and request more or fewer through the run's coordinator."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.coordinator import run_endpoint
from paceline.coordinator.client.aio import UnreachableError, UntrustedError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators, NotRunningError
from paceline.core.clock import SystemClock, monotonic_s, unix_now_s
from paceline.core.errors import ExitCode, PacelineError
from paceline.plan.codec import Json
from paceline.training.action_poller import OUTCOMES
from paceline.training.command_lease import plan_of

POLL_S = 0.05
PATIENCE_S = 5.0
_PHASES = {pb.WORKER_JOINED: "waiting", pb.WORKER_ACTIVE: "training"}


class ResizeError(PacelineError):
    """The run cannot have this number of workers, or does not have it yet."""

    exit_code = ExitCode.DEGRADED
    code = "E324"


@dataclass(frozen=True, slots=True)
class RunAt:
    """A run by its name or id at a coordinator, for commands that do not see its folder."""

    coordinators: Coordinators
    name: str

    def __str__(self) -> str:
        return self.name


Target = Path | RunAt  # a path is that of the run folder


@dataclass(frozen=True, slots=True)
class Workforce:
    """The workers of a run in its coordinator's view."""

    generation: int
    why: str
    workers: tuple[dict[str, Json], ...]
    min_workers: int
    max_workers: int


@dataclass(frozen=True, slots=True)
class Resized:
    action: int
    is_seen: bool  # the effect was seen, not only accepted
    note: str
    workers: tuple[str, ...]  # members of the generation now


def read_workforce(target: Target) -> Workforce:
    with open_run(target) as (run, client):
        view = client.read("Runs.Get", pb.GetRun(run=run), pb.RunView)
    ranks = {name: rank for rank, name in enumerate(view.generation.workers)}
    now_ms = unix_now_s() * 1000
    rows: list[dict[str, Json]] = [
        {
            "worker": worker.worker,
            "state": _PHASES.get(worker.phase, "unknown"),
            "rank": ranks.get(worker.worker),
            "host": worker.facts.get("host", ""),
            "pid": int(worker.facts.get("pid", "0")),
            "since_s": round(max(0.0, now_ms - worker.joined_ms) / 1000, 1),
        }
        for worker in sorted(view.workers, key=lambda worker: (len(worker.worker), worker.worker))
    ]
    generation = view.generation
    return Workforce(
        generation.number, generation.reason, tuple(rows), view.run.min_workers, view.run.max_workers
    )


def add(target: Target, count: int, *, wait: bool = True, within_s: float = 60.0) -> Resized:
    return _resize(target, "add", count, "", wait=wait, within_s=within_s)


def remove(
    target: Target, count: int = 1, worker: str = "", *, wait: bool = True, within_s: float = 60.0
) -> Resized:
    return _resize(target, "remove", count, worker, wait=wait, within_s=within_s)


def _resize(target: Target, kind: str, count: int, worker: str, *, wait: bool, within_s: float) -> Resized:
    with open_run(target) as (run, client):
        request = pb.RequestAction(run=run, kind=kind, target=worker, details={"count": str(count)})
        action = client.write("Actions.Request", request, pb.Action)
        final_phase = pb.ACTION_EFFECT_SEEN if wait else pb.ACTION_ACCEPTED
        action = _wait_for(client, action, final_phase, within_s)
        view = client.read("Runs.Get", pb.GetRun(run=run), pb.RunView)
    note = action.steps[-1].note
    if action.phase in (pb.ACTION_REFUSED, pb.ACTION_FAILED):
        raise ResizeError(
            f"the run {target} did not {kind} workers: {note}",
            f"see `paceline workers list {target}`; the limits are --max-workers and --shards",
        )
    is_seen = action.phase == pb.ACTION_EFFECT_SEEN
    if not is_seen and wait:
        raise ResizeError(
            f"action {action.action} was not done within {within_s:g} s ({_state(action)})",
            f"see `paceline workers list {target}`, and check that the command that started the run is "
            "still running",
        )
    return Resized(action.action, is_seen, note, tuple(view.generation.workers))


def _wait_for(
    client: BlockingClient, action: pb.Action, final_phase: pb.ActionPhase, within_s: float
) -> pb.Action:
    until_s = monotonic_s() + within_s
    while action.phase < final_phase and monotonic_s() < until_s:
        SystemClock().sleep(POLL_S)
        listed = client.read("Actions.List", pb.ListActions(run=action.run), pb.ActionList)
        action = next(other for other in listed.actions if other.action == action.action)
    return action


def _state(action: pb.Action) -> str:
    return (
        "the launcher has not accepted the request"
        if action.phase == pb.ACTION_REQUESTED
        else action.steps[-1].note
    )


@contextmanager
def open_run(target: Target) -> Iterator[tuple[str, BlockingClient]]:
    """The id of the run at its coordinator, and a client of that."""
    if isinstance(target, RunAt):
        with open_coordinators(target.coordinators).blocking_client(PATIENCE_S) as client:
            yield _find_run(client, target.name), client
        return
    run_dir = target
    endpoint = run_endpoint.find_endpoint(run_dir)
    try:
        with open_coordinators(endpoint.coordinators).blocking_client(PATIENCE_S) as client:
            yield endpoint.run, client
    except UntrustedError:
        raise
    except UnreachableError as error:
        raise NotRunningError(
            f"the coordinator of the run in {run_dir} does not respond: {error.what}",
            "if the command that started it has ended or was killed, resume:  paceline train --resume "
            f"{run_dir}",
        ) from error


def _find_run(client: BlockingClient, name: str) -> str:
    """The id of the run with this id or name; of several with one name it must be the id."""
    runs = client.read("Runs.List", pb.ListRuns(with_ended=True), pb.RunList).runs
    live = [run for run in runs if run.phase not in OUTCOMES]
    names = {run.run: _name_of(run) for run in live}
    matches = [run for run, own_name in names.items() if name in (run, own_name)]
    if len(matches) == 1:
        return matches[0]
    ended = [run for run in runs if run.phase in OUTCOMES and name in (run.run, _name_of(run))]
    if ended and not matches:
        newest = max(ended, key=lambda run: run.ended_ms)
        raise NotRunningError(
            f"the run {name!r} has ended: {OUTCOMES[newest.phase]}",
            "resume it where its folder or store is:  paceline train --resume RUN",
        )
    listed = ", ".join(f"{run} ({own_name})" for run, own_name in names.items()) or "none"
    problem = "no run" if not matches else f"{len(matches)} runs"
    raise NotRunningError(
        f"the coordinator has {problem} {name!r} at work; it has: {listed}",
        "give the id of one of them",
    )


def _name_of(run: pb.Run) -> str:
    plan = plan_of(run)
    return "" if plan is None else plan.run
