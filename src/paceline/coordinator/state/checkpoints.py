"""Checkpoints: a checkpoint is committed when every shard of it is durable.

A checkpoint begins and completes in one generation. Revoking the generation abandons it, so that
shards of two lineages never mix in one checkpoint. Where parameter servers hold the state, they
save it, and the epoch of part 0 takes the place of the generation: then workers may join and
leave meanwhile.
"""

import re
from bisect import bisect_left

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import results
from paceline.coordinator.state.model import RunRecord
from paceline.coordinator.state.results import ApplyContext

MAX_SHARDS = 4_096
MAX_CHECKPOINTS = 10_000  # of a run
MAX_ABANDONED = 16  # of a run
_SHA256 = re.compile("[0-9a-fA-F]{64}")


def begin(turn: ApplyContext, said: pb.BeginCheckpoint) -> pb.Checkpoint | pb.Refusal:
    record = _current(turn, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not_begin(record, said)
    if refusal is not None:
        return refusal
    found = pb.Checkpoint(
        run=said.run,
        step=said.step,
        generation=said.generation,
        phase=pb.CHECKPOINT_OPEN,
        shards_expected=said.shards,
        facts=said.facts,
        begun_ms=turn.now_ms,
    )
    record.pending.pop(said.step, None)  # an abandoned one
    record.pending[said.step] = found
    turn.changed(found)
    return found


def shard_durable(turn: ApplyContext, said: pb.ShardDurable) -> pb.Checkpoint | pb.Refusal:
    record = _current(turn, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    found = record.pending.get(said.step) or record.committed.get(said.step)
    is_over = found is not None and found.phase == pb.CHECKPOINT_ABANDONED
    if found is None or found.generation != said.generation or is_over:
        return results.not_found(
            f"run {said.run!r} has no checkpoint of step {said.step} in generation {said.generation}",
            "begin it before its shards are reported",
        )
    shard = pb.Shard(
        shard=said.shard.shard, uri=said.shard.uri, bytes=said.shard.bytes, sha256=said.shard.sha256.lower()
    )
    refusal = _why_not_shard(found, shard)
    if refusal is not None:
        return refusal
    place = bisect_left(found.shards, shard.shard, key=lambda other: other.shard)
    if place < len(found.shards) and found.shards[place].shard == shard.shard:
        return _again(found, found.shards[place], shard)
    found.shards.insert(place, shard)
    if len(found.shards) == found.shards_expected:
        found.phase = pb.CHECKPOINT_COMMITTED
        found.committed_ms = turn.now_ms
        record.committed[said.step] = record.pending.pop(said.step)
    turn.changed(found)
    return found


def drop(turn: ApplyContext, said: pb.DropCheckpoint) -> pb.Checkpoint | pb.Refusal:
    record = results.any_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    if said.step not in record.committed:
        return results.not_found(
            f"run {said.run!r} has no committed checkpoint of step {said.step}", "list its checkpoints"
        )
    if not record.has_ended and said.step == max(record.committed):
        return results.not_now(
            f"step {said.step} is the newest checkpoint of run {said.run!r}, which has not ended",
            "drop an older one: a run must be able to resume",
        )
    found = record.committed.pop(said.step)
    found.phase = pb.CHECKPOINT_DROPPED
    turn.changed(found)
    return found


def _current(turn: ApplyContext, name: str, generation: int) -> RunRecord | pb.Refusal:
    """The run, if what is said of a checkpoint is said by those who hold its state now."""
    record = results.open_run(turn.state, name)
    place = None if isinstance(record, pb.Refusal) else record.servers.get(0)
    is_of_servers = place is not None and place.epoch == generation
    return record if is_of_servers else results.current_run(turn.state, name, generation)


def abandon_open(turn: ApplyContext, record: RunRecord) -> None:
    """The generation is over: what it had not completed never will be."""
    for found in record.pending.values():
        if found.phase == pb.CHECKPOINT_OPEN:
            found.phase = pb.CHECKPOINT_ABANDONED
            turn.changed(found)
    for step in list(record.pending)[:-MAX_ABANDONED]:
        del record.pending[step]


def _why_not_begin(record: RunRecord, said: pb.BeginCheckpoint) -> pb.Refusal | None:
    if not 1 <= said.shards <= MAX_SHARDS:
        return results.invalid(
            f"a checkpoint of {said.shards} shards was begun",
            f"say how many shards it has, 1 to {MAX_SHARDS}",
        )
    pending = record.pending.get(said.step)
    is_open = (
        pending is not None
        and pending.phase == pb.CHECKPOINT_OPEN
        and pending.generation == said.generation  # else a former primary's
    )
    if is_open or said.step in record.committed:
        phase = "open" if is_open else "committed"
        return results.exists(
            f"run {said.run!r} already has a checkpoint of step {said.step} ({phase})",
            "report its shards" if is_open else "checkpoint a later step",
        )
    if len(record.committed) + len(record.pending) >= MAX_CHECKPOINTS:
        return results.not_now(f"run {said.run!r} has {MAX_CHECKPOINTS} checkpoints", "drop older ones")
    return None


def _why_not_shard(found: pb.Checkpoint, shard: pb.Shard) -> pb.Refusal | None:
    if shard.shard >= found.shards_expected:
        return results.invalid(
            f"shard {shard.shard} was reported of a checkpoint of {found.shards_expected} shards",
            f"count shards from 0 to {found.shards_expected - 1}",
        )
    if not shard.uri:
        return results.invalid(f"shard {shard.shard} was reported without saying where it is", "send its uri")
    if not _SHA256.fullmatch(shard.sha256):
        return results.invalid(
            f"{shard.sha256!r} is not a SHA-256", "send the shard's digest as 64 hexadecimal digits"
        )
    return None


def _again(found: pb.Checkpoint, known: pb.Shard, shard: pb.Shard) -> pb.Checkpoint | pb.Refusal:
    if known == shard:
        return found
    return results.exists(
        f"shard {shard.shard} of step {found.step} is already durable as {known.uri} ({known.sha256[:12]})",
        "a durable shard stays as it is; checkpoint a later step",
    )
