"""`paceline train`: run one plan, show how it goes, say how it went."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options, config_options
from paceline.cli.output import emit, emit_problems, say
from paceline.cli.session import Session
from paceline.cli.trainer import Trainer
from paceline.config.values import Unreadable, read_integer
from paceline.config.written import Written
from paceline.errors import ConfigError, ExitCode, NotFiniteError, Problem

if TYPE_CHECKING:
    from paceline.checkpoints.catalog import Checkpoint
    from paceline.cli.request import Request
    from paceline.plan.codec import Json
    from paceline.plan.plan import Plan


@click.command("train")
@config_options
@click.option(
    "--resume",
    metavar="RUN",
    help="Go on with this run (its folder, or s3://BUCKET/PREFIX) from its newest checkpoint.",
)
@click.option(
    "--dashboard",
    "with_dashboard",
    is_flag=True,
    help="Also show the run in a browser, on this machine; prints the address.",
)
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would happen, like `paceline plan`.")
@common_options
def train(
    session: Session, flags: Sequence[Written], resume: str | None, with_dashboard: bool, dry_run: bool
) -> ExitCode:
    """Train a task with many workers.

    Each setting can also be a variable (PACELINE_NUM_WORKERS) or a key of the
    --config file (num_workers). A flag beats a variable, a variable the file.
    """
    if dry_run:
        from paceline.cli.plan import show_plan

        show_plan(session, flags)
        return ExitCode.OK
    if with_dashboard:
        from paceline.cli.with_dashboard import showing

        session.start_trainer = showing(session)
    return _train(session, flags, resume)


def _train(session: Session, flags: Sequence[Written], resume: str | None) -> ExitCode:
    # First of all: workers take a second to start, while what follows here is quick.
    trainer = session.start_trainer()
    try:
        if resume is not None:
            return resume_with(trainer, session, flags, resume)
        return _train_with(trainer, session, flags)
    finally:
        trainer.close()


def _train_with(trainer: Trainer, session: Session, flags: Sequence[Written]) -> ExitCode:
    from paceline.cli.request import read_request

    return begin(trainer, session, read_request(session, flags, trainer))


def begin(trainer: Trainer, session: Session, request: "Request") -> ExitCode:
    from paceline.cli.run_dirs import claimed
    from paceline.cli.watch import open_watcher
    from paceline.plan.evaluation_in_words import scaling_announced

    plan = request.plan
    workers = "1 worker" if plan.processes == 1 else f"{plan.processes} workers"
    with claimed(request.first_dir, is_named=request.is_named) as run_dir:
        say(session, f"training {plan.task} with {workers}, mode {plan.mode}, in {run_dir}")
        if scaled := scaling_announced(plan):
            say(session, scaled)
        with open_watcher(session, plan.run) as watcher:
            result = trainer.train(plan, run_dir, watcher)
    return conclude(session, plan, run_dir, result)


def resume_with(trainer: Trainer, session: Session, flags: Sequence[Written], run: str) -> ExitCode:
    from paceline.app.train import holding_run, resumable

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
    run_dir = _fetched(session, run) if run.startswith("s3://") else session.folder / run
    with holding_run(run_dir):
        plan, checkpoint = resumable(run_dir, _said_workers(flags))
        if flags:
            say(session, f"each of {plan.num_workers} workers takes {plan.batch_sizes[0]} samples at a step")
        return go_on(trainer, session, run_dir, plan, checkpoint)


def go_on(
    trainer: Trainer, session: Session, run_dir: Path, plan: "Plan", checkpoint: "Checkpoint"
) -> ExitCode:
    from paceline.cli.watch import open_watcher

    for warning in checkpoint.warnings:
        say(session, f"warning: {warning}")
    for name in checkpoint.passed_over:
        say(session, f"warning: checkpoint {name} is incomplete or damaged; the one before it is used")
    say(session, f"going on with {run_dir} from {checkpoint.folder.name}, steps done: {checkpoint.clocks}")
    with open_watcher(session, plan.run) as watcher:
        result = trainer.resume(plan, run_dir, checkpoint, watcher)
    return conclude(session, plan, run_dir, result)


def _said_workers(flags: Sequence[Written]) -> int | None:
    """The one thing that may change, in some modes."""
    for flag in flags:
        try:
            if (said := read_integer(flag.raw)) >= 1:
                return said
        except Unreadable:
            pass  # told below, with its place
        what = f"num_workers is {flag.raw!r}, but it must be an integer, 1 or more"
        raise ConfigError([Problem(what, "set num_workers to 2, for example", flag.where)])
    return None


def _fetched(session: Session, url: str) -> Path:
    """A new folder for a run of which only the object store has something."""
    from paceline.app.resume import plan_in_store
    from paceline.cli.run_dirs import claim_run_dir
    from paceline.disk import write_durably

    plan, text = plan_in_store(url)
    run_dir = claim_run_dir(session.folder / "runs" / plan.run, is_named=False)
    write_durably(run_dir / "plan.json", [text.encode()])
    return run_dir


def conclude(session: Session, plan: "Plan", run_dir: Path, result: "dict[str, Json]") -> ExitCode:
    from paceline.cli.summary import is_early_stop, summary_lines
    from paceline.plan.codec import plan_hash

    emit(
        session,
        "train",
        {"run": plan.run, "run_dir": str(run_dir), "plan_hash": plan_hash(plan), "result": result},
        summary_lines(result, plan, run_dir),
    )
    if result.get("diverged"):
        error = _diverged(run_dir)
        if not session.common.json:
            emit_problems(session, error.problems, error.exit_code, as_json=False)
        return error.exit_code
    if not result.get("stopped_early") or is_early_stop(result):
        return ExitCode.OK
    is_told_to = result.get("stopped_by") in ("SIGTERM", "SIGHUP")
    return ExitCode.TERMINATED if is_told_to else ExitCode.INTERRUPTED


def _diverged(run_dir: Path) -> NotFiniteError:
    return NotFiniteError(
        f"the last loss of every worker in {run_dir} is not finite, so the model is of no use",
        "try a smaller --lr or --clip-norm 1, and look at the samples; --on-nan stop ends a run at once",
    )
