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
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from paceline.checkpoints.catalog import Checkpoint
from paceline.core import environ
from paceline.core.clock import SystemClock, monotonic_s, unix_now_s
from paceline.core.disk import exclusive, remove_drafts, write_durably
from paceline.core.errors import (
    CannotWriteError,
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
from paceline.monitoring.probes.collector import collecting
from paceline.plan.catalog import server_names
from paceline.plan.codec import COPY, Json, dumps, plan_hash, read, recorded_hash
from paceline.plan.plan import Plan
from paceline.storage.checkpoint_store import ObjectStore
from paceline.training.checkpoints import CheckpointUploader
from paceline.training.progress import Progress, RecentSpeed, Watcher
from paceline.training.request import SampleCounter
from paceline.training.result import describe_evaluation, result_json
from paceline.training.resume import discard_newer, newest_checkpoint, with_num_workers

if TYPE_CHECKING:
    from paceline.coordinator.admin.status import CoordinatorProbe
    from paceline.training.elastic import Coordinators

DISK_FULL_TIMEOUT_S = 60.0  # for a person or a clean-up to make room for result.json
DISK_FULL_POLL_S = 0.5


class Launcher(RunLauncher, SampleCounter, Protocol):
    """What `paceline train` needs: a launcher of runs that can also count samples before there is a plan."""


def train(
    plan: Plan,
    run_dir: Path,
    watcher: Watcher,
    *,
    warm: RunLauncher | None = None,
    resume_from: Checkpoint | None = None,
    coordinators: "Coordinators | None" = None,
) -> dict[str, Json]:
    """Run the plan to its end; the contents of result.json. A given `warm` launcher stays open."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with exclusive(run_dir) as warning:
        if warning is not None:
            watcher.note(f"warning: {warning}")
        if resume_from is None:
            require_no_run(run_dir)
        remove_drafts(run_dir)
        if plan.ray is None or not (warm is None or isinstance(warm, LocalLauncher)):
            with exporting(plan, run_dir, watcher.note):
                return _run(plan, run_dir, watcher, warm, resume_from, coordinators)
        from paceline.launchers.ray.launcher import RayLauncher  # brings Ray, which other runs do not need

        # What is wrong there is reported before anything starts.
        with closing(RayLauncher(plan)) as on_ray, exporting(plan, run_dir, watcher.note):
            return _run(plan, run_dir, watcher, on_ray, resume_from, coordinators)


def require_no_run(run_dir: Path) -> None:
    """Asked again under the lock: another command may have made a run here in the meantime."""
    if (run_dir / "plan.json").exists():
        what = f"{run_dir} already holds a run"
        hint = f"name another folder, or resume that run:  paceline train --resume {run_dir}"
        raise RunFolderError([Problem(what, hint)])


def _run(
    plan: Plan,
    run_dir: Path,
    watcher: Watcher,
    warm: RunLauncher | None,
    resume_from: Checkpoint | None,
    coordinators: "Coordinators | None",
) -> dict[str, Json]:
    started_ns = SystemClock().now_ns()
    started_s = monotonic_s()
    require_rules(plan.alerts, run_dir)
    keeper = _prepare_checkpoints(plan, run_dir, resume_from, watcher)
    if resume_from is None:
        _write_plan(plan, run_dir)
    log = _begin_log(plan, run_dir, started_ns, resume_from, watcher.note)
    if resume_from is not None:
        # Only now: a plan that the log does not name, because this process died here, is refused.
        _write_plan(plan, run_dir)
    launcher: RunLauncher = warm or LocalLauncher()
    try:
        with (
            _stop_on_signals(launcher, watcher, log) as asked_by,
            collecting(plan, run_dir, watcher.note, _coordinator_probe),
            alerting(plan.alerts, run_dir, watcher.note),
        ):
            follow = _Follower(plan, watcher, started_s, resume_from, keeper)
            folder = None if resume_from is None else resume_from.folder
            if plan.elastic is None:
                ended = launcher.run(plan, run_dir, on_message=follow, resume_from=folder)
            else:
                ended = _run_elastic(launcher, plan, run_dir, folder, follow, log, watcher, coordinators)
            keeper.close(wait=True)
    except BaseException:
        keeper.close(wait=False)
        log.write("run_finished", outcome="failed")
        raise
    finally:
        if warm is None:
            launcher.close()
    result = _conclude(plan, run_dir, ended, log, wall_s=monotonic_s() - started_s)
    # Said also when it came too late to stop this run: it was meant for whatever would come next, too.
    if asked_by and "stopped_by" not in result:
        result["stopped_by"] = asked_by[0]
    if "record" in result:
        watcher.note(f"warning: the event log was interrupted: {json.dumps(result['record'])}")
    _write_result(result, run_dir, watcher.note)
    return result


def _coordinator_probe(run_dir: Path) -> "CoordinatorProbe":
    from paceline.coordinator.admin.status import (
        CoordinatorProbe,  # brings grpc, which other runs do not need
    )

    return CoordinatorProbe(run_dir)


def _write_plan(plan: Plan, run_dir: Path) -> None:
    for name in (COPY, "plan.json"):  # without it nothing can be resumed
        write_durably(run_dir / name, [dumps(plan).encode()])


def _write_result(result: dict[str, Json], run_dir: Path, note: Callable[[str], None]) -> None:
    """Whole or absent: half of it would be taken for a damaged run. A full disk gets time to be cleared."""
    data = (json.dumps(result, indent=2) + "\n").encode()
    give_up_s = monotonic_s() + DISK_FULL_TIMEOUT_S
    has_said = False
    while True:
        try:
            write_durably(run_dir / "result.json", [data])
            return
        except OSError as error:
            what = f"{run_dir}/result.json cannot be written: {error.strerror}"
            if monotonic_s() > give_up_s:
                raise CannotWriteError(
                    what, f"make room, then write it again:  paceline train --resume {run_dir}"
                ) from error
            if not has_said:
                has_said = True
                note(f"warning: {what}; make room within {DISK_FULL_TIMEOUT_S:g} s")
        SystemClock().sleep(DISK_FULL_POLL_S)


def _run_elastic(
    launcher: RunLauncher,
    plan: Plan,
    run_dir: Path,
    resume_from: Path | None,
    follow: "_Follower",
    log: EventLog,
    watcher: Watcher,
    coordinators: "Coordinators | None",
) -> RunOutcome:
    from paceline.training.elastic import supervised  # brings grpc, which other runs do not need

    with supervised(plan, run_dir, log, watcher.note, coordinators) as (supervisor, registry):
        with follow.keeper.telling(registry.drop):
            try:
                ended = launcher.run(
                    plan, run_dir, on_message=follow, resume_from=resume_from, supervisor=supervisor
                )
            except BaseException:
                registry.give_up()  # a second Ctrl-C waits for no answer
                raise
        has_failed = ended.ledger.cause() is not None
        stopped = any(bool(r.get("stopped")) for r in ended.reports.values())
        if has_failed:
            registry.end("failed")
        else:
            registry.end("stopped" if stopped else "finished")
        return ended


@contextmanager
def locked_run(run_dir: Path) -> Iterator[None]:
    """The lock of a run that is there, for a command that reads it first and writes then."""
    if not run_dir.is_dir():
        raise NoSuchRunError(f"there is no folder {run_dir}", "name the folder of a run: ls runs/")
    with exclusive(run_dir):
        yield


def load_resumable(run_dir: Path, num_workers: int | None = None) -> tuple[Plan, Checkpoint]:
    """What is needed to go on with a run: its plan, and its newest complete checkpoint.

    With another number of workers, if one is given.
    """
    plan = read(run_dir / "plan.json")
    _require_recorded(run_dir)
    if num_workers is not None:
        plan = with_num_workers(plan, num_workers)
    checkpoint = newest_checkpoint(plan, run_dir)
    if checkpoint is None:
        raise NoCheckpointError(
            f"{run_dir} has no complete checkpoint to go on from",
            "start it anew, with --checkpoint-every 100 for example, so that it leaves some",
        )
    return plan, checkpoint


def _require_recorded(run_dir: Path) -> None:
    """A plan file may be sound and still be another run's: the log names the plans of this one."""
    known = recorded_plans(run_dir / "events.jsonl")
    if known and (found := recorded_hash(run_dir / "plan.json")) not in known:
        raise DamagedRecordError(
            f"{run_dir}/plan.json holds plan {found}, but the log was made by {', '.join(sorted(known))}",
            f"bring the run's own plan back, from {run_dir}/{COPY} or a backup; or start a new run",
        )


def _prepare_checkpoints(
    plan: Plan, run_dir: Path, resume_from: Checkpoint | None, watcher: Watcher
) -> CheckpointUploader:
    store = None if plan.checkpoint_store is None else ObjectStore(plan.checkpoint_store)
    if resume_from is not None:
        discard_newer(run_dir, resume_from, store, watcher.note)
    elif store is not None:
        store.begin(dumps(plan))
    return CheckpointUploader(plan, run_dir, store, watcher.note)


def _begin_log(
    plan: Plan, run_dir: Path, started_ns: int, resume_from: Checkpoint | None, note: Callable[[str], None]
) -> EventLog:
    path = run_dir / "events.jsonl"
    write_header(path, run=plan.run, plan=plan_hash(plan), t0_ns=started_ns, started_unix_s=unix_now_s())
    log = EventLog(path, who="launcher", clock=SystemClock(), say=lambda text: note(f"warning: {text}"))
    log.write(
        "run_started",
        plan=plan_hash(plan),
        launcher=plan.launcher.value,
        unix_s=unix_now_s(),
        pid=os.getpid(),
    )
    if resume_from is not None:
        # With elastic servers the one that begins says what it goes back to.
        clocks = "" if server_names(plan) else ",".join(map(str, resume_from.clocks))
        log.write("run_resumed", version=resume_from.version, clocks=clocks)
    return log


class _Follower:
    """Turns the launcher's messages into progress."""

    def __init__(
        self,
        plan: Plan,
        watcher: Watcher,
        started_s: float,
        resume_from: Checkpoint | None,
        keeper: CheckpointUploader,
    ) -> None:
        self.keeper = keeper
        self._plan = plan
        self._watcher = watcher
        self._started_s = started_s
        self._before = resume_from.clocks if resume_from is not None else (0,) * plan.num_workers
        self._recent = RecentSpeed()
        self._evaluating_s = 0.0
        self._has_warned = False

    def __call__(self, message: Message) -> None:
        if message["ev"] == "started":
            # Only the first one begins the clock: later ones are replacements.
            self._recent.begin(monotonic_s())
        if message["ev"] == "checkpoint":
            self.keeper.heard(message)
        if message["ev"] == "note":
            self._watcher.note(str(message["text"]))
        if message["ev"] == "evaluated":
            self._evaluating_s += float(str(message["took_s"]))
            self._watcher.note(describe_evaluation(message, self._plan))
        if message["ev"] != "progress" or not isinstance(message["steps"], list):
            return
        # A worker that has not stepped yet in this session still stands where it resumed.
        steps = [max(int(str(s)), b) for s, b in zip(message["steps"], self._before, strict=True)]
        now_s = monotonic_s()
        fresh = [s - b for s, b in zip(steps, self._before, strict=True)]
        samples = sum(s * size for s, size in zip(fresh, self._plan.batch_sizes, strict=True))
        self._recent.take(now_s - self._evaluating_s, samples, sum(fresh) / self._plan.num_workers)
        loss = message["loss"]
        if isinstance(loss, float) and not math.isfinite(loss):
            self._warn_of(loss, max(steps))
        alive = int(str(message["alive"]))
        self._watcher.progress(
            Progress(
                # What a server threw away was a step of its worker, but is none of the run's.
                step=min(self._plan.steps, sum(steps) // self._plan.num_workers),
                total_steps=self._plan.steps,
                loss=float(loss) if isinstance(loss, float) else None,
                samples_per_s=self._recent.samples_per_s,
                workers_alive=alive,
                # An elastic run may have grown beyond the workers that it began with.
                num_workers=max(alive, self._plan.processes),
                elapsed_s=now_s - self._started_s,
                steps_per_s=self._recent.steps_per_s,
            )
        )

    def _warn_of(self, loss: float, step: int) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        hint = "try a smaller --lr or --clip-norm 1; --on-nan stop ends a run at the first NaN"
        self._watcher.note(f"warning: the loss is {loss} at step {step}: {hint}")


@contextmanager
def _stop_on_signals(launcher: RunLauncher, watcher: Watcher, log: EventLog) -> Iterator[list[str]]:
    """The first Ctrl-C (SIGTERM, SIGHUP) asks for an orderly stop, the second ends everything now.

    A hang-up is never the second: the kernel, the shell and the service manager may each send one.
    """
    asked_by: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked_by  # signals belong to the main thread, and so to whoever runs it
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            environ.leave_dead_terminal()
            if asked_by:
                return
        elif not set(asked_by) <= {"SIGHUP"}:
            launcher.kill()
            raise KeyboardInterrupt
        asked_by.append(signal.Signals(number).name)
        watcher.note("stopping after the current step, with a checkpoint; press Ctrl-C again to end now")
        log.write("stop_requested", by=asked_by[0])
        launcher.stop()

    previous = {s: signal.signal(s, on_signal) for s in environ.stop_signals()}
    try:
        yield asked_by
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _training_error_code(code: str) -> str:
    """A participant's kind of error, unless scripts know that kind by another exit code than a run's."""
    from paceline.core.error_catalog.index import ERROR_CATALOG  # only whoever fails pays for it

    row = ERROR_CATALOG.get(code)
    return code if row is not None and row.exit_code is ExitCode.TRAINING_FAILED else ""


def _conclude(
    plan: Plan, run_dir: Path, ended: RunOutcome, log: EventLog, *, wall_s: float
) -> dict[str, Json]:
    cause = ended.ledger.cause()
    if cause is not None:
        log.write("worker_lost", cause=f"{cause.who}: {cause.what}")
        log.write("run_finished", outcome="failed")
        if cause.exit_code is ExitCode.BAD_CONFIG:
            raise ConfigError([Problem(cause.what, cause.hint, code=cause.code)])
        what = f"the run failed: {cause.who}: {cause.what}"
        raise TrainingError(what, cause.hint).known_as(_training_error_code(cause.code))
    stopped = any(bool(r.get("stopped")) for r in ended.reports.values())
    log.write("run_finished", outcome="stopped" if stopped else "finished")
    log.close()
    return result_json(plan, run_dir, ended.reports, wall_s=wall_s, stopped=stopped)
