"""Resume points: the newest valid checkpoint in the run folder or its object store, and earlier runs."""

from dataclasses import replace
from pathlib import Path

from paceline.checkpoints.catalog import Checkpoint, newest_complete, newest_shared, number_of, set_aside
from paceline.config.environment import World
from paceline.core.errors import ConfigError, Problem, RunFolderError
from paceline.launchers.torchrun import Starter
from paceline.plan.catalog import MODES, is_split, server_names
from paceline.plan.codec import plan_hash, read
from paceline.plan.plan import Plan
from paceline.storage.objects import StoreError
from paceline.storage.run_store import RunStore
from paceline.training.request import Request, existing_runs
from paceline.training.run_sessions import require_newest

CHECKPOINT_DIR = "checkpoints"


def newest_checkpoint(plan: Plan, run_dir: Path) -> Checkpoint | None:
    """The newest valid checkpoint, downloaded first if only the store has it; damaged ones are skipped."""
    local = newest_local(plan, run_dir)
    if plan.checkpoint_store is None:
        return local
    after = -1 if local is None else number_of(local.folder)
    try:
        store = RunStore(plan.checkpoint_store)
        require_newest(store, run_dir)
        passed_over = store.fetch_newest(run_dir / CHECKPOINT_DIR, after=after)
    except StoreError as error:
        if local is None:
            raise
        return replace(local, warnings=(f"{error.what}; resuming from the run folder",))
    newest = newest_local(plan, run_dir)
    return newest and replace(newest, passed_over=(*passed_over, *newest.passed_over))


def discard_newer(run_dir: Path, checkpoint: Checkpoint) -> None:
    """Remove checkpoints after the one that the run resumes from: they belong to a discarded history."""
    set_aside(run_dir / CHECKPOINT_DIR, after=number_of(checkpoint.folder))


def has_shared_snapshot(plan: Plan) -> bool:
    """Whether one worker saves for all, so that its snapshot alone is a complete checkpoint."""
    return plan.elastic is not None and not server_names(plan) and not is_split(plan.mode)


def newest_local(plan: Plan, run_dir: Path) -> Checkpoint | None:
    """The newest valid checkpoint in the run folder."""
    newest = newest_shared if has_shared_snapshot(plan) else newest_complete
    return newest(run_dir / CHECKPOINT_DIR, plan.num_workers)


def with_num_workers(plan: Plan, num_workers: int) -> Plan:
    """The same work for another number of workers.

    The global batch alone decides which samples a step takes, so it stays the same and is divided again: two
    workers with 32 samples each become one with 64. No sample is lost or seen twice, and the mean of a step
    is the same but for the order of summation.
    """
    if num_workers == plan.num_workers:
        return plan
    if not is_split(plan.mode):
        supported = ", ".join(mode.name for mode in MODES.values() if mode.is_split)
        message = f"num_workers cannot be changed when a run of mode {plan.mode} is resumed"
        hint = f"leave it out, or start a new run; only checkpoints of {supported} fit any number of workers"
        raise ConfigError([Problem(message, hint)])
    size, rest = divmod(plan.global_batch, num_workers)
    if rest:
        fitting = [str(n) for n in range(1, plan.global_batch + 1) if plan.global_batch % n == 0]
        message = f"{num_workers} workers do not divide the {plan.global_batch} samples of a step evenly"
        raise ConfigError([Problem(message, f"set num_workers to one of {', '.join(fitting[:12])}")])
    return replace(plan, num_workers=num_workers, batch_sizes=(size,) * num_workers)


def find_previous_run(request: Request, world: World) -> Path | None:
    """The folder of the run to resume, if there is one.

    After a restart by torchrun that is the run which the same torchrun started; with `--resume auto` the
    newest run of this name. Raises RunFolderError if it was made by another plan.
    """
    if request.is_named:
        runs = [folder for folder in existing_runs(request.first_dir) if folder == request.first_dir]
    else:
        runs = existing_runs(request.first_dir)
    if world.restarts > 0:
        starter = Starter.of(world)
        runs = [folder for folder in runs if starter.is_same(Starter.read(folder))]
    if not runs:
        return None
    newest = runs[-1]
    if plan_hash(read(newest / "plan.json")) != plan_hash(request.plan):
        message = f"{newest} belongs to another plan, so this run cannot resume from it"
        hint = f"name another folder with --run-dir, or resume that run:  --resume {newest}"
        raise RunFolderError([Problem(message, hint)])
    return newest
