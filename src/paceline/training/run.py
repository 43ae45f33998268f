"""One run from its plan to its result: start the workers, follow them, leave a run folder.

The folder: `plan.json`, `events.jsonl`, `logs/`, `checkpoints/`, `result.json`.
Every command that shows or compares runs reads that folder and nothing else. Its lock
(`paceline.core.disk`) is held from before the first read of a run that is resumed until after
its result is written.
"""

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from paceline.checkpoints.catalog import Checkpoint
from paceline.core import environ
from paceline.core.clock import SystemClock, monotonic_s, unix_now_s
from paceline.core.disk import exclusive, remove_drafts, write_durably
from paceline.core.errors import (
    CannotWriteError,
    ClusterOptionError,
    ConfigError,
    DamagedRecordError,
    ExitCode,
    NoCheckpointError,
    NoSuchRunError,
    Problem,
    RunFolderError,
    TrainingError,
)
from paceline.events.log import EventLog, write_header
from paceline.events.segments import recorded_plans
from paceline.export.processes import exporting
from paceline.launchers.local import LocalLauncher, Message, RunLauncher, RunOutcome
from paceline.monitoring.alerts.delivery import alerting, require_rules
from paceline.monitoring.metrics.http_server import require_prometheus
from paceline.monitoring.metrics.server_process import MetricsEndpoint, serving_metrics
from paceline.monitoring.probes.collector import collecting
from paceline.plan.catalog import server_names
from paceline.plan.codec import COPY, Json, dumps, plan_hash, read, recorded_hash
from paceline.plan.plan import Launcher as LauncherKind
from paceline.plan.plan import Plan
from paceline.storage.run_store import RunStore
from paceline.training.progress import Progress, RecentSpeed, Watcher
from paceline.training.request import SampleCounter
from paceline.training.result import describe_evaluation, result_json
from paceline.training.resume import discard_newer, newest_checkpoint, with_num_workers
from paceline.training.run_copy import RunCopier
from paceline.training.script import ScriptProber

if TYPE_CHECKING:
    from paceline.coordinator.admin.status import CoordinatorProbe
    from paceline.coordinator.run_endpoint import Coordinators
    from paceline.training.command_lease import CommandLease

DISK_FULL_TIMEOUT_S = 60.0  # time for a clean-up to free space for result.json
DISK_FULL_POLL_S = 0.5


class Launcher(RunLauncher, SampleCounter, Protocol):
    """Launcher of `paceline train`: starts runs, and counts samples before the plan is made."""


class LocalCommandLauncher(Launcher, ScriptProber, Protocol):
    """Launcher of commands on this machine, which also start scripts (`paceline run`)."""


def train(
    plan: Plan,
    run_dir: Path,
    watcher: Watcher,
    *,
    warm: RunLauncher | None = None,
    resume_from: Checkpoint | None = None,
    coordinators: "Coordinators | None" = None,
    lease: "CommandLease | None" = None,
    metrics: MetricsEndpoint | None = None,
) -> dict[str, Json]:
    """Run the plan to its end; the contents of result.json. A given `warm` launcher stays open.

    `coordinators`: of an elastic run; without them those of PACELINE_COORDINATOR, or a node of its own.
    `lease`: of a run with a store and a coordinator, if the caller holds it; otherwise it is acquired here.
    """
    if metrics is not None:
        require_prometheus()
    if plan.elastic is not None:
        coordinators = _reachable(coordinators, plan.launcher)
    run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        warning = stack.enter_context(exclusive(run_dir))
        if warning is not None:
            watcher.note(f"warning: {warning}")
        if resume_from is None:
            require_no_run(run_dir)
        remove_drafts(run_dir)
        if lease is None and plan.checkpoint_store is not None and coordinators is not None:
            from paceline.training.command_lease import held_lease  # imports grpc

            lease = stack.enter_context(held_lease(coordinators, plan.checkpoint_store, watcher.note))
        if plan.launcher is LauncherKind.AGENTS:
            from paceline.launchers.agents.launcher import HostsLauncher, offered_to_agents  # imports grpc

            on_agents = HostsLauncher(offered_to_agents)
            with exporting(plan, run_dir, watcher.note):
                return _run(plan, run_dir, watcher, on_agents, resume_from, coordinators, lease, metrics)
        if plan.ray is None or not (warm is None or isinstance(warm, LocalLauncher)):
            with exporting(plan, run_dir, watcher.note):
                return _run(plan, run_dir, watcher, warm, resume_from, coordinators, lease, metrics)
        from paceline.launchers.ray.launcher import RayLauncher  # imports Ray

        # Connect before anything starts, so that problems with Ray leave no half-started run.
        with closing(RayLauncher(plan)) as on_ray, exporting(plan, run_dir, watcher.note):
            return _run(
                plan,
                run_dir,
                watcher,
                on_ray,
                resume_from,
                coordinators,
                lease,
                metrics,
                host=on_ray.address,
            )


def _reachable(coordinators: "Coordinators | None", launcher: LauncherKind) -> "Coordinators | None":
    from paceline.coordinator.client.endpoints import choose_coordinators  # imports grpc
    from paceline.training.elastic import check_coordinators

    chosen = coordinators or choose_coordinators()
    if chosen is None and launcher is LauncherKind.AGENTS:
        raise ClusterOptionError(
            [
                Problem(
                    "launcher is agents, but no coordinator is named where agents find the run",
                    "add --coordinator HOST:PORT, or set PACELINE_COORDINATOR",
                    "--coordinator",
                )
            ]
        )
    return None if chosen is None else check_coordinators(chosen)


def require_no_run(run_dir: Path) -> None:
    """Checked again under the lock: another command may have started a run here in the meantime."""
    if (run_dir / "plan.json").exists():
        message = f"{run_dir} already holds a run"
        hint = f"name another folder, or resume that run:  paceline train --resume {run_dir}"
        raise RunFolderError([Problem(message, hint)])


def _run(
    plan: Plan,
    run_dir: Path,
    watcher: Watcher,
    warm: RunLauncher | None,
    resume_from: Checkpoint | None,
    coordinators: "Coordinators | None",
    lease: "CommandLease | None",
    metrics: MetricsEndpoint | None,
    *,
    host: str = "127.0.0.1",
) -> dict[str, Json]:
    started_ns = SystemClock().now_ns()
    started_s = monotonic_s()
    require_rules(plan.alerts, run_dir)
    copier = _prepare_copy(plan, run_dir, resume_from, watcher)
    if resume_from is None:
        _write_plan(plan, run_dir)
    log = _begin_log(plan, run_dir, started_ns, resume_from, watcher.note)
    if resume_from is not None:
        # After the log: if this process dies in between, the old plan is still the one that the log names.
        _write_plan(plan, run_dir)
    if lease is not None:
        lease.ending = "failed"  # unless it ends otherwise
    follow = MessageFollower(plan, watcher, started_s, resume_from, copier, lease)
    with copier.running(), serving_metrics(metrics, run_dir, watcher.note):
        result = _execute(plan, run_dir, watcher, warm, resume_from, coordinators, log, follow, host=host)
        _write_result(result, run_dir, watcher.note)
    if lease is not None:
        lease.ending = str(result.get("stopped_by", "finished"))
    return result


def _execute(
    plan: Plan,
    run_dir: Path,
    watcher: Watcher,
    warm: RunLauncher | None,
    resume_from: Checkpoint | None,
    coordinators: "Coordinators | None",
    log: EventLog,
    follow: "MessageFollower",
    *,
    host: str,
) -> dict[str, Json]:
    launcher: RunLauncher = warm or LocalLauncher()
    try:
        with (
            _stop_on_signals(launcher, watcher, log) as stop_signals,
            collecting(plan, run_dir, watcher.note, _coordinator_probe),
            alerting(plan.alerts, run_dir, watcher.note),
        ):
            folder = None if resume_from is None else resume_from.folder
            if plan.elastic is None:
                outcome = launcher.run(plan, run_dir, on_message=follow, resume_from=folder)
            else:
                outcome = _run_elastic(
                    launcher, plan, run_dir, folder, follow, log, watcher, coordinators, host
                )
    except BaseException:
        log.write("run_finished", outcome="failed")
        raise
    finally:
        if warm is None:
            launcher.close()
    result = _conclude(plan, run_dir, outcome, log, wall_s=monotonic_s() - follow.started_s)
    # Also if the signal arrived too late to stop this run: a caller with more work must stop, too.
    if stop_signals and "stopped_by" not in result:
        result["stopped_by"] = stop_signals[0]
    if "record" in result:
        watcher.note(f"warning: the event log was interrupted: {json.dumps(result['record'])}")
    return result


def _coordinator_probe(run_dir: Path) -> "CoordinatorProbe":
    from paceline.coordinator.admin import status  # imports grpc, which other runs do not need

    return status.CoordinatorProbe(run_dir)


def _write_plan(plan: Plan, run_dir: Path) -> None:
    for name in (COPY, "plan.json"):  # without it the run cannot be resumed
        write_durably(run_dir / name, [dumps(plan).encode()])


def _write_result(result: dict[str, Json], run_dir: Path, note: Callable[[str], None]) -> None:
    """Write result.json atomically. On a full disk, retry for DISK_FULL_TIMEOUT_S before giving up."""
    data = (json.dumps(result, indent=2) + "\n").encode()
    give_up_s = monotonic_s() + DISK_FULL_TIMEOUT_S
    has_warned = False
    while True:
        try:
            write_durably(run_dir / "result.json", [data])
            return
        except OSError as error:
            message = f"{run_dir}/result.json cannot be written: {error.strerror}"
            if monotonic_s() > give_up_s:
                raise CannotWriteError(
                    message, f"free disk space, then write it again:  paceline train --resume {run_dir}"
                ) from error
            if not has_warned:
                has_warned = True
                note(f"warning: {message}; free disk space within {DISK_FULL_TIMEOUT_S:g} s")
        SystemClock().sleep(DISK_FULL_POLL_S)


def _run_elastic(
    launcher: RunLauncher,
    plan: Plan,
    run_dir: Path,
    resume_from: Path | None,
    follow: "MessageFollower",
    log: EventLog,
    watcher: Watcher,
    coordinators: "Coordinators | None",
    host: str,
) -> RunOutcome:
    from paceline.training.elastic import supervised  # imports grpc

    with supervised(plan, run_dir, log, watcher.note, coordinators, host=host) as (supervisor, registry):
        with follow.copier.reporting_removals(registry.drop):
            try:
                outcome = launcher.run(
                    plan, run_dir, on_message=follow, resume_from=resume_from, supervisor=supervisor
                )
            except BaseException:
                registry.give_up()  # a second Ctrl-C does not wait for the coordinator
                raise
        has_failed = outcome.ledger.cause() is not None
        has_stopped = any(bool(r.get("stopped")) for r in outcome.reports.values())
        if has_failed:
            registry.end("failed")
        else:
            registry.end("stopped" if has_stopped else "finished")
        return outcome


@contextmanager
def locked_run(run_dir: Path) -> Iterator[None]:
    """The lock of an existing run, for a command that reads the run before it writes."""
    if not run_dir.is_dir():
        raise NoSuchRunError(f"there is no folder {run_dir}", "name the folder of a run: ls runs/")
    with exclusive(run_dir):
        yield


def load_resumable(run_dir: Path, num_workers: int | None = None) -> tuple[Plan, Checkpoint]:
    """The plan of a run, changed to `num_workers` if given, and its newest complete checkpoint."""
    plan = read(run_dir / "plan.json")
    _require_recorded(run_dir)
    if num_workers is not None:
        plan = with_num_workers(plan, num_workers)
    checkpoint = newest_checkpoint(plan, run_dir)
    if checkpoint is None and plan.checkpoint_store is not None:
        raise NoCheckpointError(
            f"neither {run_dir} nor {plan.checkpoint_store} has a complete checkpoint to resume from: "
            "the run ended before its first one was copied",
            "start it again with another --run-store, and an earlier checkpoint: --checkpoint-every 100",
        )
    if checkpoint is None:
        raise NoCheckpointError(
            f"{run_dir} has no complete checkpoint to resume from",
            "start a new run with checkpoints: --checkpoint-every 100",
        )
    return plan, checkpoint


def _require_recorded(run_dir: Path) -> None:
    """Refuse a valid plan.json that belongs to another run: the log names the plans of this one."""
    recorded = recorded_plans(run_dir / "events.jsonl")
    if recorded and (digest := recorded_hash(run_dir / "plan.json")) not in recorded:
        raise DamagedRecordError(
            f"{run_dir}/plan.json holds plan {digest}, but the log belongs to {', '.join(sorted(recorded))}",
            f"restore the run's plan from {run_dir}/{COPY} or a backup, or start a new run",
        )


def _prepare_copy(plan: Plan, run_dir: Path, resume_from: Checkpoint | None, watcher: Watcher) -> RunCopier:
    store = None if plan.checkpoint_store is None else RunStore(plan.checkpoint_store)
    copier = RunCopier(plan, run_dir, store, watcher.note)
    if resume_from is None:
        copier.begin()
    else:
        copier.resume(resume_from)
        discard_newer(run_dir, resume_from)
    return copier


def _begin_log(
    plan: Plan, run_dir: Path, started_ns: int, resume_from: Checkpoint | None, note: Callable[[str], None]
) -> EventLog:
    path = run_dir / "events.jsonl"
    write_header(path, run=plan.run, plan=plan_hash(plan), t0_ns=started_ns, started_unix_s=unix_now_s())
    log = EventLog(path, who="launcher", clock=SystemClock(), notify=lambda text: note(f"warning: {text}"))
    log.write(
        "run_started",
        plan=plan_hash(plan),
        launcher=plan.launcher.value,
        unix_s=unix_now_s(),
        pid=os.getpid(),
    )
    if resume_from is not None:
        # With elastic servers the first server to start writes what it restored.
        clocks = "" if server_names(plan) else ",".join(map(str, resume_from.clocks))
        log.write("run_resumed", version=resume_from.version, clocks=clocks)
    return log


class MessageFollower:
    """Turns the launcher's messages into progress and notes."""

    def __init__(
        self,
        plan: Plan,
        watcher: Watcher,
        started_s: float,
        resume_from: Checkpoint | None,
        copier: RunCopier,
        lease: "CommandLease | None",
    ) -> None:
        self.started_s = started_s
        self.copier = copier
        self._lease = lease
        self._plan = plan
        self._watcher = watcher
        self._resumed_at = resume_from.clocks if resume_from is not None else (0,) * plan.num_workers
        self._speed = RecentSpeed()
        self._evaluating_s = 0.0
        self._has_warned = False

    def __call__(self, message: Message) -> None:
        self.copier.check()
        if self._lease is not None:
            self._lease.check()
        if message["ev"] == "started":
            # Only the first one starts the clock: later ones are replacements.
            self._speed.begin(monotonic_s())
        if message["ev"] == "checkpoint":
            self.copier.on_checkpoint(message)
        if message["ev"] == "note":
            self._watcher.note(str(message["text"]))
        if message["ev"] == "evaluated":
            self._evaluating_s += float(str(message["took_s"]))
            self._watcher.note(describe_evaluation(message, self._plan))
        if message["ev"] != "progress" or not isinstance(message["steps"], list):
            return
        # A worker without a step in this session is still where it resumed.
        steps = [max(int(str(s)), b) for s, b in zip(message["steps"], self._resumed_at, strict=True)]
        now_s = monotonic_s()
        new_steps = [s - b for s, b in zip(steps, self._resumed_at, strict=True)]
        samples = sum(s * size for s, size in zip(new_steps, self._plan.batch_sizes, strict=True))
        self._speed.take(now_s - self._evaluating_s, samples, sum(new_steps) / self._plan.num_workers)
        loss = message["loss"]
        if isinstance(loss, float) and not math.isfinite(loss):
            self._warn_not_finite(loss, max(steps))
        alive = int(str(message["alive"]))
        self._watcher.progress(
            Progress(
                # A discarded gradient is a step of its worker, but not of the run.
                step=min(self._plan.steps, sum(steps) // self._plan.num_workers),
                total_steps=self._plan.steps,
                loss=float(loss) if isinstance(loss, float) else None,
                samples_per_s=self._speed.samples_per_s,
                workers_alive=alive,
                # An elastic run may have grown beyond the workers that it began with.
                num_workers=max(alive, self._plan.processes),
                elapsed_s=now_s - self.started_s,
                steps_per_s=self._speed.steps_per_s,
            )
        )

    def _warn_not_finite(self, loss: float, step: int) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        hint = "try a smaller --lr or --clip-norm 1; --on-nan stop ends a run at the first NaN"
        self._watcher.note(f"warning: the loss is {loss} at step {step}: {hint}")


@contextmanager
def _stop_on_signals(launcher: RunLauncher, watcher: Watcher, log: EventLog) -> Iterator[list[str]]:
    """The first Ctrl-C (SIGTERM, SIGHUP) requests an orderly stop; the second ends everything now.

    A hang-up is never the second: the kernel, the shell and the service manager may each send one.
    """
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread can handle signals
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            environ.leave_dead_terminal()
            if received:
                return
        elif not set(received) <= {"SIGHUP"}:
            launcher.kill()
            raise KeyboardInterrupt
        received.append(signal.Signals(number).name)
        watcher.note("stopping after the current step, with a checkpoint; press Ctrl-C again to end now")
        log.write("stop_requested", by=received[0])
        launcher.stop()

    previous = {s: signal.signal(s, on_signal) for s in environ.stop_signals()}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _training_error_code(code: str) -> str:
    """The participant's error code, if its exit code is that of a failed run; otherwise none."""
    from paceline.core.error_catalog.index import ERROR_CATALOG  # only needed after a failure

    row = ERROR_CATALOG.get(code)
    return code if row is not None and row.exit_code is ExitCode.TRAINING_FAILED else ""


def _conclude(
    plan: Plan, run_dir: Path, outcome: RunOutcome, log: EventLog, *, wall_s: float
) -> dict[str, Json]:
    cause = outcome.ledger.cause()
    if cause is not None:
        log.write("worker_lost", cause=f"{cause.who}: {cause.what}")
        log.write("run_finished", outcome="failed")
        if cause.exit_code is ExitCode.BAD_CONFIG:
            raise ConfigError([Problem(cause.what, cause.hint, code=cause.code)])
        message = f"the run failed: {cause.who}: {cause.what}"
        raise TrainingError(message, cause.hint).known_as(_training_error_code(cause.code))
    has_stopped = any(bool(r.get("stopped")) for r in outcome.reports.values())
    log.write("run_finished", outcome="stopped" if has_stopped else "finished")
    log.close()
    return result_json(plan, run_dir, outcome.reports, wall_s=wall_s, stopped=has_stopped)
