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
MAX_CHECKPOINTS = 10_000  # per run
MAX_ABANDONED = 16  # per run
_SHA256 = re.compile("[0-9a-fA-F]{64}")


def begin(context: ApplyContext, request: pb.BeginCheckpoint) -> pb.Checkpoint | pb.Refusal:
    record = _current(context, request.run, request.generation)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not_begin(record, request)
    if refusal is not None:
        return refusal
    checkpoint = pb.Checkpoint(
        run=request.run,
        step=request.step,
        generation=request.generation,
        phase=pb.CHECKPOINT_OPEN,
        shards_expected=request.shards,
        facts=request.facts,
        begun_ms=context.now_ms,
    )
    record.pending.pop(request.step, None)  # an abandoned one
    record.pending[request.step] = checkpoint
    context.changed(checkpoint)
    return checkpoint


def shard_durable(context: ApplyContext, request: pb.ShardDurable) -> pb.Checkpoint | pb.Refusal:
    record = _current(context, request.run, request.generation)
    if isinstance(record, pb.Refusal):
        return record
    checkpoint = record.pending.get(request.step) or record.committed.get(request.step)
    is_over = checkpoint is not None and checkpoint.phase == pb.CHECKPOINT_ABANDONED
    if checkpoint is None or checkpoint.generation != request.generation or is_over:
        return results.not_found(
            f"run {request.run!r} has no checkpoint of step {request.step} in generation "
            f"{request.generation}",
            "start it before its shards are reported",
        )
    shard = pb.Shard(
        shard=request.shard.shard,
        uri=request.shard.uri,
        bytes=request.shard.bytes,
        sha256=request.shard.sha256.lower(),
    )
    refusal = _why_not_shard(checkpoint, shard)
    if refusal is not None:
        return refusal
    position = bisect_left(checkpoint.shards, shard.shard, key=lambda other: other.shard)
    if position < len(checkpoint.shards) and checkpoint.shards[position].shard == shard.shard:
        return _answer_repeated_shard(checkpoint, checkpoint.shards[position], shard)
    checkpoint.shards.insert(position, shard)
    if len(checkpoint.shards) == checkpoint.shards_expected:
        checkpoint.phase = pb.CHECKPOINT_COMMITTED
        checkpoint.committed_ms = context.now_ms
        record.committed[request.step] = record.pending.pop(request.step)
    context.changed(checkpoint)
    return checkpoint


def drop(context: ApplyContext, request: pb.DropCheckpoint) -> pb.Checkpoint | pb.Refusal:
    record = results.any_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    if request.step not in record.committed:
        return results.not_found(
            f"run {request.run!r} has no committed checkpoint of step {request.step}", "list its checkpoints"
        )
    if not record.has_ended and request.step == max(record.committed):
        return results.not_now(
            f"step {request.step} is the newest checkpoint of run {request.run!r}, which has not ended",
            "drop an older one: a run must be able to resume",
        )
    checkpoint = record.committed.pop(request.step)
    checkpoint.phase = pb.CHECKPOINT_DROPPED
    context.changed(checkpoint)
    return checkpoint


def _current(context: ApplyContext, name: str, generation: int) -> RunRecord | pb.Refusal:
    """The run, if the request comes from the workers or servers that hold its state now."""
    record = results.open_run(context.state, name)
    placement = None if isinstance(record, pb.Refusal) else record.servers.get(0)
    is_of_servers = placement is not None and placement.epoch == generation
    return record if is_of_servers else results.current_run(context.state, name, generation)


def abandon_open(context: ApplyContext, record: RunRecord) -> None:
    """The generation has ended, so its open checkpoints can never complete."""
    for checkpoint in record.pending.values():
        if checkpoint.phase == pb.CHECKPOINT_OPEN:
            checkpoint.phase = pb.CHECKPOINT_ABANDONED
            context.changed(checkpoint)
    for step in list(record.pending)[:-MAX_ABANDONED]:
        del record.pending[step]


def _why_not_begin(record: RunRecord, request: pb.BeginCheckpoint) -> pb.Refusal | None:
    if not 1 <= request.shards <= MAX_SHARDS:
        return results.invalid(
            f"a checkpoint with {request.shards} shards was started",
            f"set shards to 1 to {MAX_SHARDS}",
        )
    pending = record.pending.get(request.step)
    is_open = (
        pending is not None
        and pending.phase == pb.CHECKPOINT_OPEN
        and pending.generation == request.generation  # else it is of a former primary
    )
    if is_open or request.step in record.committed:
        phase = "open" if is_open else "committed"
        return results.exists(
            f"run {request.run!r} already has a checkpoint of step {request.step} ({phase})",
            "report its shards" if is_open else "checkpoint a later step",
        )
    if len(record.committed) + len(record.pending) >= MAX_CHECKPOINTS:
        return results.not_now(f"run {request.run!r} has {MAX_CHECKPOINTS} checkpoints", "drop older ones")
    return None


def _why_not_shard(checkpoint: pb.Checkpoint, shard: pb.Shard) -> pb.Refusal | None:
    if shard.shard >= checkpoint.shards_expected:
        return results.invalid(
            f"shard {shard.shard} was reported of a checkpoint of {checkpoint.shards_expected} shards",
            f"count shards from 0 to {checkpoint.shards_expected - 1}",
        )
    if not shard.uri:
        return results.invalid(f"shard {shard.shard} was reported without its uri", "send its uri")
    if not _SHA256.fullmatch(shard.sha256):
        return results.invalid(
            f"{shard.sha256!r} is not a SHA-256", "send the shard's digest as 64 hexadecimal digits"
        )
    return None


def _answer_repeated_shard(
    checkpoint: pb.Checkpoint, known: pb.Shard, shard: pb.Shard
) -> pb.Checkpoint | pb.Refusal:
    if known == shard:
        return checkpoint
    return results.exists(
        f"shard {shard.shard} of step {checkpoint.step} is already durable as {known.uri} "
        f"({known.sha256[:12]})",
        "a durable shard stays as it is; checkpoint a later step",
    )
