"""How is the state of an elastic run saved while nobody trains? As after any step: all replicas are equal."""

from pathlib import Path

from paceline.checkpoints.catalog import folder_at
from paceline.checkpoints.nested import split
from paceline.checkpoints.store import Snapshot, remove_old, write_snapshot
from paceline.events.log import Log
from paceline.worker.replica import Replica


def save_between_steps(
    replica: Replica, committed: int, finished: int, *, shards: int, root: Path, log: Log
) -> None:
    """`committed` steps of the run are in the replica; `finished` gradients were made by this worker."""
    log.flush()  # first: a checkpoint must never be ahead of the log
    snapshot = replica.snapshot()
    skeleton, tensors = split(
        {}, "strategy"
    )  # between two steps there is nothing but the replica's own state
    facts = {**snapshot.facts, "strategy": skeleton, "clock": finished, "at": committed}
    folder = folder_at(root, committed * shards)
    write_snapshot(folder, "worker-0", Snapshot({**snapshot.tensors, **tensors}, facts))
    log.write("checkpoint", path=folder.name, step=finished)
    log.flush()
    remove_old(root, participants=1)
