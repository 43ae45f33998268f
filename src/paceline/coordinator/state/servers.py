"""Which worker holds which shard of the parameters, and who takes over?

The epoch of a place grows with every change. A push carries it, so that a
former primary that does not know yet is refused.
"""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import find, refuse
from paceline.coordinator.state.model import RunRecord
from paceline.coordinator.state.turn import Turn

MOST_SHARDS = 4_096


def place(turn: Turn, said: pb.PlaceServer) -> pb.ServerPlace | pb.Refusal:
    record = find.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not(record, said)
    if refusal is not None:
        return refusal
    known = record.servers.get(said.shard) or pb.ServerPlace(run=said.run, shard=said.shard)
    return _put(turn, record, known, said.primary, said.backup)


def promote(turn: Turn, said: pb.PromoteBackup) -> pb.ServerPlace | pb.Refusal:
    record = find.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    found = record.servers.get(said.shard)
    if found is None:
        return refuse.not_found(f"shard {said.shard} of run {said.run!r} is not placed", "place it first")
    if said.epoch != found.epoch:
        return _is_over(said.run, said.shard, said.epoch, found.epoch)
    if not found.backup:
        return refuse.not_now(
            f"shard {said.shard} of run {said.run!r} has no backup", "place it anew, with a backup"
        )
    return _put(turn, record, found, found.backup, "")


def without(turn: Turn, record: RunRecord, worker: str) -> None:
    """The worker is gone: where it was primary its backup takes over at once."""
    for found in list(record.servers.values()):
        if found.primary == worker:
            _put(turn, record, found, found.backup, "")
        elif found.backup == worker:
            _put(turn, record, found, found.primary, "")


def vacate(turn: Turn, record: RunRecord) -> None:
    """Everybody is gone."""
    for found in list(record.servers.values()):
        if found.primary or found.backup:
            _put(turn, record, found, "", "")


def _put(turn: Turn, record: RunRecord, known: pb.ServerPlace, primary: str, backup: str) -> pb.ServerPlace:
    """A new record each time: a message that is changed for ever keeps the memory of what it held."""
    found = pb.ServerPlace(
        run=known.run, shard=known.shard, primary=primary, backup=backup, epoch=known.epoch + 1
    )
    record.servers[known.shard] = found
    turn.changed(found)
    return found


def _why_not(record: RunRecord, said: pb.PlaceServer) -> pb.Refusal | None:
    if said.shard >= MOST_SHARDS:
        return refuse.invalid(
            f"shard {said.shard} is beyond the last one", f"use shards 0 to {MOST_SHARDS - 1}"
        )
    known = record.servers.get(said.shard)
    epoch = 0 if known is None else known.epoch
    if said.epoch != epoch:
        return _is_over(said.run, said.shard, said.epoch, epoch)
    if said.primary == said.backup:
        return refuse.invalid(
            f"{said.primary!r} was named as primary and as backup",
            "name two workers, or leave the backup empty",
        )
    for name in (said.primary, said.backup) if said.backup else (said.primary,):
        if name not in record.workers:
            return refuse.not_found(
                f"worker {name!r} of run {said.run!r} is not alive", "name living workers only"
            )
    return None


def _is_over(run: str, shard: int, said: int, known: int) -> pb.Refusal:
    return refuse.fenced(
        f"shard {shard} of run {run!r} is in epoch {known}, not {said}",
        "read its place again, and decide anew",
    )
