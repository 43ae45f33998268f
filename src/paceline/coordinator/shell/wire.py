"""How does a Raft message look on the wire? As a RaftMessage, and back; a bad one is never believed."""

import zlib
from collections.abc import AsyncIterable, Iterable, Iterator

from google.protobuf.message import DecodeError

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.door import LARGEST, is_sane, why_malformed
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    Index,
    Kind,
    Membership,
    Message,
    NodeId,
    Snapshot,
    Term,
)
from paceline.coordinator.state.machine import ClusterState

FRAME_BYTES = 2 << 20  # of messages in one frame; below what a server takes
PART_BYTES = 1 << 20  # of a snapshot


class BadFrameError(ValueError):
    """Another node, or somebody who pretends to be one, sent what no node sends."""


def to_wire(message: Message) -> pb.RaftMessage:
    return pb.RaftMessage(
        kind=message.kind,
        sender=message.sender,
        to=message.to,
        term=message.term,
        index=message.index,
        log_term=message.log_term,
        entries=[pb.Entry(index=e.index, term=e.term, kind=e.kind, data=e.data) for e in message.entries],
        commit=message.commit,
        rejected=message.rejected,
        hint=message.hint,
        hint_term=message.hint_term,
        round=message.round,
        is_transfer=message.is_transfer,
    )


def from_wire(found: pb.RaftMessage) -> Message:
    try:
        kind = Kind(found.kind)
        entries = tuple(Entry(Index(e.index), Term(e.term), EntryKind(e.kind), e.data) for e in found.entries)
    except ValueError as error:
        raise BadFrameError(f"a message of an unknown kind: {error}") from error
    message = Message(
        kind,
        NodeId(found.sender),
        NodeId(found.to),
        Term(found.term),
        Index(found.index),
        Term(found.log_term),
        entries,
        Index(found.commit),
    )
    message.rejected, message.round, message.is_transfer = found.rejected, found.round, found.is_transfer
    message.hint, message.hint_term = Index(found.hint), Term(found.hint_term)
    if (why := why_malformed(message)) is not None:
        raise BadFrameError(why)
    return message


def to_frames(cluster: str, messages: Iterable[Message]) -> Iterator[pb.Frame]:
    """As few frames as fit."""
    frame, size = pb.Frame(cluster=cluster), 0
    for message in messages:
        found = to_wire(message)
        cost = found.ByteSize()
        if frame.messages and size + cost > FRAME_BYTES:
            yield frame
            frame, size = pb.Frame(cluster=cluster), 0
        frame.messages.append(found)
        size += cost
    if frame.messages:
        yield frame


def to_parts(cluster: str, message: Message) -> Iterator[pb.SnapshotPart]:
    snapshot = message.snapshot
    assert snapshot is not None, "only a snapshot message is sent in parts"
    data = snapshot.data
    first = pb.SnapshotPart(
        cluster=cluster,
        message=to_wire(message),
        index=snapshot.index,
        term=snapshot.term,
        voters=sorted(snapshot.membership.voters),
        learners=sorted(snapshot.membership.learners),
    )
    yield first
    for start in range(0, len(data), PART_BYTES):
        yield pb.SnapshotPart(cluster=cluster, data=data[start : start + PART_BYTES])
    yield pb.SnapshotPart(cluster=cluster, crc=zlib.crc32(data), is_last=True)


async def from_parts(parts: AsyncIterable[pb.SnapshotPart], *, most_bytes: int) -> tuple[str, Message]:
    """The cluster that it is meant for, and the message with its whole snapshot, if it verifies."""
    first: pb.SnapshotPart | None = None
    data, crc = bytearray(), None
    async for part in parts:
        if first is None:
            first = part
        data += part.data
        if len(data) > most_bytes:
            raise BadFrameError(f"a snapshot of more than {most_bytes} bytes")
        if part.is_last:
            crc = part.crc
    if first is None or not first.HasField("message") or crc is None:
        raise BadFrameError("a snapshot without a beginning or an end")
    if zlib.crc32(data) != crc:
        raise BadFrameError("a snapshot whose checksum is wrong")
    message = from_wire(first.message)
    membership = Membership(frozenset(map(NodeId, first.voters)), frozenset(map(NodeId, first.learners)))
    message.snapshot = Snapshot(Index(first.index), Term(first.term), membership, bytes(data))
    _check_snapshot(message, message.snapshot)
    return first.cluster, message


def _check_snapshot(message: Message, snapshot: Snapshot) -> None:
    if message.kind is not Kind.SNAPSHOT or not is_sane(snapshot.membership):
        raise BadFrameError("a snapshot that is none")
    if not 1 <= snapshot.index <= LARGEST or not 1 <= snapshot.term <= message.term:
        raise BadFrameError(f"a snapshot up to entry {snapshot.index} of term {snapshot.term}")
    try:
        applied = ClusterState.restore(snapshot.data).applied
    except DecodeError as error:
        raise BadFrameError("a snapshot of what is no state") from error
    if applied > snapshot.index:
        raise BadFrameError(f"a snapshot up to entry {snapshot.index} with entry {applied} in it")
