"""From where does a run go on? From its newest checkpoint that verifies, here or in its object store."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paceline.checkpoints.catalog import Checkpoint, newest_complete, newest_shared, number_of
from paceline.checkpoints.object_store import PLAN, ObjectStore, StoreError, fetch_newest
from paceline.checkpoints.retention import set_aside
from paceline.errors import ConfigError, NoCheckpointError, Problem
from paceline.plan.catalog import is_split, server_names
from paceline.plan.check_checkpoints import store_problem
from paceline.plan.codec import loads
from paceline.plan.plan import Plan

FOLDER = "checkpoints"


def newest_checkpoint(plan: Plan, run_dir: Path) -> Checkpoint | None:
    """What is damaged is passed over, and said; what only the store has is brought here first."""
    local = newest_here(plan, run_dir)
    if plan.checkpoint_store is None:
        return local
    after = -1 if local is None else number_of(local.folder)
    try:
        passed_over = fetch_newest(ObjectStore(plan.checkpoint_store), run_dir / FOLDER, after=after)
    except StoreError as error:
        if local is None:
            raise
        return replace(local, warnings=(f"{error.what}; going on from the run folder",))
    found = newest_here(plan, run_dir)
    return found and replace(found, passed_over=(*passed_over, *found.passed_over))


def forget_newer(
    run_dir: Path, checkpoint: Checkpoint, store: ObjectStore | None, note: Callable[[str], None]
) -> None:
    """What came after the checkpoint that a run goes on from never happened."""
    number = number_of(checkpoint.folder)
    set_aside(run_dir / FOLDER, after=number)
    if store is None:
        return
    try:
        for newer in store.numbers():
            if newer > number:
                store.remove(newer)
    except StoreError as error:
        note(f"warning: newer checkpoints stay in {store.url}: {error.what}")


def plan_in_store(url: str) -> tuple[Plan, str]:
    """(the plan, its text) of the run that is kept in this store, for a machine that has nothing of it."""
    wrong = store_problem(url)
    if wrong is not None:
        raise ConfigError([Problem(*wrong, "--resume")])
    text = ObjectStore(url).plan()
    if text is None:
        raise NoCheckpointError(
            f"{url} holds no run", "name what --checkpoint-store said when it was trained"
        )
    return loads(text, where=f"{url}/{PLAN}"), text


def has_shared(plan: Plan) -> bool:
    """Does one worker save for all? Then a checkpoint is whole with its snapshot alone."""
    return plan.elastic is not None and not server_names(plan) and not is_split(plan.mode)


def newest_here(plan: Plan, run_dir: Path) -> Checkpoint | None:
    """In the run folder."""
    newest = newest_shared if has_shared(plan) else newest_complete
    return newest(run_dir / FOLDER, plan.num_workers)
