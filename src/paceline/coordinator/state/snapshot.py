"""How is the whole state written down, and read again? The same state always gives the same bytes."""

from typing import TypeVar

from google.protobuf.message import Message

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import samples
from paceline.coordinator.state.model import (
    ClusterRecords,
    Cursor,
    LighthouseRecord,
    RunRecord,
    SessionRecord,
)

Record = TypeVar("Record", bound=Message)


def pack(state: ClusterRecords) -> bytes:
    written = pb.State(
        applied=state.applied,
        now_ms=state.now_ms,
        elapsed_ms=state.elapsed_ms,
        forgotten_generation=state.forgotten_generation,
        nodes=state.nodes.values(),
        actions=state.actions.values(),
    )
    for session in state.sessions.values():
        _pack_session(session, written.sessions.add())
    for record in (*state.runs.values(), *state.ended_runs.values()):
        _pack_run(record, written.runs.add())
    for found in state.lighthouses.values():
        written.lighthouses.add(lighthouse=found.lighthouse, issued=found.issued)
    return written.SerializeToString(deterministic=True)


def unpack(data: bytes, state: ClusterRecords) -> None:
    """Into a fresh state."""
    written = pb.State.FromString(data)
    state.applied = written.applied
    state.now_ms = written.now_ms
    state.elapsed_ms = written.elapsed_ms
    state.forgotten_generation = written.forgotten_generation
    state.nodes = {node.node: _own(node) for node in written.nodes}
    state.actions = {action.action: _own(action) for action in written.actions}
    for told in written.sessions:
        session = _unpack_session(told)
        state.sessions[session.session] = session
        state.nonces[session.by, session.nonce] = session.session
        state.answer_bytes += session.answer_bytes
    for part in written.runs:
        record = _unpack_run(part)
        (state.ended_runs if record.has_ended else state.runs)[record.run.run] = record
    for kept in written.lighthouses:
        issued = _own(kept.issued) if kept.HasField("issued") else None
        state.lighthouses[kept.lighthouse.job] = LighthouseRecord(_own(kept.lighthouse), issued)


def _pack_session(session: SessionRecord, into: pb.Session) -> None:
    into.session, into.client, into.nonce, into.by = (
        session.session,
        session.client,
        session.nonce,
        session.by,
    )
    into.used_elapsed_ms = session.used_elapsed_ms
    into.first_open = session.first_open
    into.answers.update(session.answers)


def _unpack_session(told: pb.Session) -> SessionRecord:
    session = SessionRecord(
        told.session, told.client, told.nonce, told.by, told.used_elapsed_ms, told.first_open
    )
    session.answers = dict(told.answers)
    session.answer_bytes = sum(len(answer) for answer in session.answers.values())
    return session


def _pack_run(record: RunRecord, into: pb.RunState) -> None:
    into.run.CopyFrom(record.run)
    into.generations.extend(record.generations.values())
    into.workers.extend(record.workers.values())
    into.workers.extend(record.ended_workers.values())
    into.servers.extend(record.servers.values())
    into.checkpoints.extend(record.committed.values())
    into.checkpoints.extend(record.pending.values())
    into.samples.CopyFrom(samples.told(record.samples))
    into.leases.extend(record.leases.values())
    into.leases.extend(record.consumed.values())
    into.alerts.extend(record.alerts.values())


def _unpack_run(part: pb.RunState) -> RunRecord:
    record = RunRecord(_own(part.run))
    cursor = part.samples
    returned = [(found.first, found.end) for found in cursor.returned]
    record.samples = Cursor(cursor.epoch, cursor.next, cursor.committed, returned)
    record.generations = {found.number: _own(found) for found in part.generations}
    record.servers = {found.shard: _own(found) for found in part.servers}
    record.alerts = {mark.alert: _own(mark) for mark in part.alerts}
    for worker in part.workers:
        if worker.phase in (pb.WORKER_JOINED, pb.WORKER_ACTIVE):
            record.workers[worker.worker] = _own(worker)
        else:
            record.ended_workers[worker.incarnation] = _own(worker)
    for checkpoint in part.checkpoints:
        is_committed = checkpoint.phase == pb.CHECKPOINT_COMMITTED
        (record.committed if is_committed else record.pending)[checkpoint.step] = _own(checkpoint)
    for lease in part.leases:
        (record.consumed if lease.is_committed else record.leases)[lease.lease] = _own(lease)
    return record


def _own(part: Record) -> Record:
    """A copy: a part would keep the memory of the whole snapshot."""
    copy = type(part)()
    copy.CopyFrom(part)
    return copy
