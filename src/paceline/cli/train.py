"""`paceline train` and `paceline train --dry-run`: run one plan, or only show it."""

import shutil
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from paceline.cli.coordinator_options import run_coordinator_options
from paceline.cli.options import SettingsCommand, common_options, config_options, is_store, run_path
from paceline.cli.output import emit, emit_problems, print_message
from paceline.config.values import RawSetting, Unreadable, read_integer
from paceline.core import environ
from paceline.core.errors import ConfigError, ExitCode, NotFiniteError, Problem
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.checkpoints.catalog import Checkpoint
    from paceline.config.environment import World
    from paceline.coordinator.run_endpoint import Coordinators
    from paceline.monitoring.metrics.server_process import MetricsEndpoint
    from paceline.plan.codec import Json
    from paceline.plan.explain import Line
    from paceline.plan.plan import Plan
    from paceline.training.command_lease import CommandLease
    from paceline.training.request import Request
    from paceline.training.run import Launcher


AUTO = "auto"  # of --resume


class _More(TypedDict):
    """What a run may have in addition to its plan."""

    with_dashboard: bool
    coordinators: "Coordinators | None"
    metrics: "MetricsEndpoint | None"


@click.command("train", cls=SettingsCommand)
@config_options
@click.option(
    "--resume",
    metavar="RUN|URL|auto",
    help="Resume a run; auto: the newest of this name.",
)
@click.option(
    "--dashboard",
    "with_dashboard",
    is_flag=True,
    help="Serve the dashboard during the run.",
)
@click.option("--dry-run", "-n", is_flag=True, help="Print the plan and exit.")
@common_options
@run_coordinator_options("Coordinator nodes of an elastic run. [default: PACELINE_COORDINATOR]")
def train(
    session: Session,
    flags: Sequence[RawSetting],
    resume: str | None,
    with_dashboard: bool,
    dry_run: bool,
    coordinators: "Coordinators | None",
) -> ExitCode:
    """Train a task with many workers.

    Settings come from flags, then PACELINE_* variables, then the --config file.
    """
    if dry_run:
        show_plan(session, flags)
        return ExitCode.OK
    if with_dashboard:
        environ.set_default_variables(PACELINE_LIVE_LOG="1")  # before workers start: they inherit it
    # Before anything else: importing torch takes the helper process a second, in which the plan is resolved.
    with session.start_launcher() as launcher:
        if resume not in (None, AUTO):
            return resume_run(
                launcher, session, flags, resume, with_dashboard=with_dashboard, coordinators=coordinators
            )
        from paceline.training.request import read_request

        request = read_request(session, flags, launcher, may_hold_run=resume == AUTO)
        if resume == AUTO:
            return start_or_resume_run(
                launcher, session, request, with_dashboard=with_dashboard, coordinators=coordinators
            )
        return start_run(launcher, session, request, with_dashboard=with_dashboard, coordinators=coordinators)


def start_run(
    launcher: "Launcher",
    session: Session,
    request: "Request",
    *,
    with_dashboard: bool = False,
    coordinators: "Coordinators | None" = None,
) -> ExitCode:
    from paceline.plan.catalog import SCRIPT_TASK
    from paceline.plan.describe import announce_lr_scaling
    from paceline.training.request import claimed_run_dir

    plan = request.plan
    workers = "1 worker" if plan.processes == 1 else f"{plan.processes} workers"
    if plan.task == SCRIPT_TASK:
        what = f"running {Path(str(plan.task_options['file'])).name}"
    else:
        what = f"training {plan.task}"
    with claimed_run_dir(request.first_dir, is_named=request.is_named) as run_dir:
        print_message(session, f"{what} with {workers}, mode {plan.mode}, in {run_dir}")
        if scaled := announce_lr_scaling(plan):
            print_message(session, scaled)
        return follow_run(
            launcher,
            session,
            plan,
            run_dir,
            with_dashboard=with_dashboard,
            coordinators=coordinators,
            metrics=request.metrics,
        )


def start_or_resume_run(
    launcher: "Launcher",
    session: Session,
    request: "Request",
    world: "World | None" = None,
    *,
    with_dashboard: bool = False,
    coordinators: "Coordinators | None" = None,
) -> ExitCode:
    """Resume the newest run of this name if it has a checkpoint. `world`: of ranks that torchrun started."""
    from paceline.config.environment import World
    from paceline.training.resume import find_previous_run, newest_checkpoint
    from paceline.training.run import locked_run

    more: _More = {
        "with_dashboard": with_dashboard,
        "coordinators": coordinators,
        "metrics": request.metrics,
    }
    previous = find_previous_run(request, world or World())
    if previous is not None:
        if world is not None and world.restarts > 0:
            print_message(session, f"restarted by torchrun (restart {world.restarts})")
        with locked_run(previous):
            checkpoint = newest_checkpoint(request.plan, previous)
            if checkpoint is not None:
                return continue_run(launcher, session, previous, request.plan, checkpoint, **more)
        print_message(session, f"{previous} has no complete checkpoint to resume from: starting from step 0")
    return start_run(launcher, session, request, with_dashboard=with_dashboard, coordinators=coordinators)


def follow_run(
    launcher: "Launcher",
    session: Session,
    plan: "Plan",
    run_dir: Path,
    *,
    with_dashboard: bool,
    coordinators: "Coordinators | None" = None,
    metrics: "MetricsEndpoint | None" = None,
) -> ExitCode:
    """Start the plan in this folder, follow it to its end, and show its result."""
    result = _train(
        launcher,
        session,
        plan,
        run_dir,
        with_dashboard=with_dashboard,
        coordinators=coordinators,
        metrics=metrics,
    )
    return conclude(session, plan, run_dir, result)


def resume_run(
    launcher: "Launcher",
    session: Session,
    flags: Sequence[RawSetting],
    run: str,
    *,
    with_dashboard: bool = False,
    coordinators: "Coordinators | None" = None,
) -> ExitCode:
    from paceline.monitoring.metrics.server_process import SETTINGS, endpoint_of_flags
    from paceline.training.run import load_resumable, locked_run

    metrics = endpoint_of_flags(flags, session.folder)
    flags = [flag for flag in flags if flag.key not in SETTINGS]
    others = [flag for flag in flags if flag.key != "num_workers"]
    if others:
        raise ConfigError(
            [
                Problem(
                    f"{flag.key} cannot be changed when a run is resumed",
                    f"leave it out, or start a new run; the plan is {run}/plan.json",
                    flag.where,
                )
                for flag in others
            ]
        )
    with ExitStack() as stack:
        lease = None
        if is_store(run):
            run_dir, lease = _fetch_run(session, run, coordinators, stack)
        else:
            run_dir = session.folder / run_path(session.folder, Path(run))
        stack.enter_context(locked_run(run_dir))
        plan, checkpoint = load_resumable(run_dir, _num_workers_flag(flags))
        if flags:
            print_message(
                session,
                f"{pluralize(plan.num_workers, 'worker')}, {plan.batch_sizes[0]} samples per worker and step",
            )
        return continue_run(
            launcher,
            session,
            run_dir,
            plan,
            checkpoint,
            with_dashboard=with_dashboard,
            coordinators=coordinators,
            lease=lease,
            metrics=metrics,
        )


def continue_run(
    launcher: "Launcher",
    session: Session,
    run_dir: Path,
    plan: "Plan",
    checkpoint: "Checkpoint",
    *,
    with_dashboard: bool = False,
    coordinators: "Coordinators | None" = None,
    lease: "CommandLease | None" = None,
    metrics: "MetricsEndpoint | None" = None,
) -> ExitCode:
    for warning in checkpoint.warnings:
        print_message(session, f"warning: {warning}")
    for name in checkpoint.passed_over:
        print_message(session, f"warning: checkpoint {name} is incomplete or damaged; using the previous one")
    print_message(
        session, f"resuming {run_dir} from {checkpoint.folder.name}, steps done: {checkpoint.clocks}"
    )
    result = _train(
        launcher,
        session,
        plan,
        run_dir,
        resume_from=checkpoint,
        with_dashboard=with_dashboard,
        coordinators=coordinators,
        lease=lease,
        metrics=metrics,
    )
    return conclude(session, plan, run_dir, result)


def _train(
    launcher: "Launcher",
    session: Session,
    plan: "Plan",
    run_dir: Path,
    *,
    resume_from: "Checkpoint | None" = None,
    with_dashboard: bool,
    coordinators: "Coordinators | None",
    lease: "CommandLease | None" = None,
    metrics: "MetricsEndpoint | None" = None,
) -> "dict[str, Json]":
    from paceline.training import run
    from paceline.training.progress_display import open_watcher

    if coordinators is not None and plan.elastic is None:
        raise ConfigError(
            [
                Problem(
                    "the run is not elastic, so it uses no coordinator",
                    "add --elastic, or leave out --coordinator",
                    "--coordinator",
                )
            ]
        )
    if plan.ray is not None or plan.launcher.value == "agents":
        launcher.close()  # others start the workers; the helper process would only take memory
    with open_watcher(session, plan.run) as watcher, ExitStack() as stack:
        if with_dashboard:
            from paceline.dashboard.launch import dashboard_process

            stack.enter_context(dashboard_process(run_dir, lambda text: print_message(session, text)))
        return run.train(
            plan,
            run_dir,
            watcher,
            warm=launcher,
            resume_from=resume_from,
            coordinators=coordinators,
            lease=lease,
            metrics=metrics,
        )


def _num_workers_flag(flags: Sequence[RawSetting]) -> int | None:
    """The value of --num-workers, the only setting that some modes can change."""
    for flag in flags:
        try:
            if (count := read_integer(flag.raw)) >= 1:
                return count
        except Unreadable:
            pass  # reported below, with its origin
        message = f"num_workers is {flag.raw!r}, but it must be an integer, 1 or more"
        raise ConfigError([Problem(message, "set num_workers to 2, for example", flag.where)])
    return None


def _fetch_run(
    session: Session, url: str, coordinators: "Coordinators | None", stack: ExitStack
) -> "tuple[Path, CommandLease | None]":
    """A new folder with the run from its store, and the run's lease at its coordinator, if it uses one."""
    from paceline.training.request import claim_run_dir
    from paceline.training.run_sessions import fetch_run, require_silence, stored_run

    store, plan = stored_run(url)
    lease = None
    if plan.elastic is not None:
        lease = _held_lease(session, url, coordinators, stack)
    if lease is None:
        require_silence(store, lambda text: print_message(session, text))
    run_dir = claim_run_dir(session.folder / "runs" / plan.run, is_named=False)
    fetch_run(store, run_dir)
    return run_dir, lease


def _held_lease(
    session: Session, url: str, coordinators: "Coordinators | None", stack: ExitStack
) -> "CommandLease | None":
    """None: neither a flag nor the environment names a coordinator."""
    from paceline.coordinator.client.endpoints import choose_coordinators
    from paceline.training.command_lease import held_lease

    chosen = coordinators or choose_coordinators()
    if chosen is None:
        return None
    return stack.enter_context(held_lease(chosen, url, lambda text: print_message(session, text)))


def conclude(session: Session, plan: "Plan", run_dir: Path, result: "dict[str, Json]") -> ExitCode:
    from paceline.cli.train_summary import is_early_stop, summary_lines
    from paceline.plan.catalog import SCRIPT_TASK
    from paceline.plan.codec import plan_hash

    emit(
        session,
        "train",
        {"run": plan.run, "run_dir": str(run_dir), "plan_hash": plan_hash(plan), "result": result},
        summary_lines(result, plan, run_dir),
    )
    if result.get("diverged"):
        error = _divergence_error(run_dir)
        if not session.common.json:
            emit_problems(session, error.problems, error.exit_code, as_json=False)
        return error.exit_code
    has_stopped_itself = plan.task == SCRIPT_TASK and "stopped_by" not in result  # by run.stop()
    if not result.get("stopped_early") or is_early_stop(result) or has_stopped_itself:
        return ExitCode.OK
    is_terminated = result.get("stopped_by") in ("SIGTERM", "SIGHUP")
    return ExitCode.TERMINATED if is_terminated else ExitCode.INTERRUPTED


def _divergence_error(run_dir: Path) -> NotFiniteError:
    return NotFiniteError(
        f"the last loss of every worker in {run_dir} is not finite: training diverged",
        "try a smaller --lr or --clip-norm 1, and check the samples; --on-nan stop ends a run at the "
        "first NaN",
    )


@click.command("plan", cls=SettingsCommand)
@config_options
@common_options
def plan(session: Session, flags: Sequence[RawSetting]) -> None:
    """Explain what train would do, and start nothing."""
    show_plan(session, flags)


def show_plan(session: Session, flags: Sequence[RawSetting]) -> None:
    # Imported here, so that --help does not pay for it.
    from paceline.plan.codec import plan_hash, to_json
    from paceline.plan.explain import explain
    from paceline.training.request import read_request

    request = read_request(session, flags)
    lines = explain(request.plan, cpu_count=request.facts.cpu_count)
    digest = plan_hash(request.plan)
    emit(
        session,
        "plan",
        {
            "plan": to_json(request.plan),
            "hash": digest,
            "run_dir": str(request.run_dir),
            "explanation": [{"topic": line.topic, "text": line.text} for line in lines],
        },
        [*_wrap(lines), f"{'hash':<12}{digest}"],
    )
    print_message(session, "dry run: nothing was started; run it without --dry-run")


def _wrap(lines: "Sequence[Line]") -> list[str]:
    width = max(60, min(100, shutil.get_terminal_size((100, 24)).columns))
    return [
        textwrap.fill(line.text, width, initial_indent=f"{line.topic:<12}", subsequent_indent=" " * 12)
        for line in lines
    ]
