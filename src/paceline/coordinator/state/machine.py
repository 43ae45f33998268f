"""The replicated state machine: apply one log entry, take and restore snapshots.

Every node computes the same result. There is no clock, no random number and no exception: time
is part of the command, ids are log indexes, and a command that cannot be applied is answered
with a refusal. Calendar time is recorded and never compared, because clocks are set, and those of
two leaders differ. Timeouts use `elapsed_ms`, the time that leaders have run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import (
    actions,
    checkpoints,
    generations,
    results,
    runs,
    samples,
    sessions,
)
from paceline.coordinator.state.model import (
    CoordinatorRecords,
    Cursor,
    LighthouseRecord,
    RunRecord,
    SessionRecord,
)
from paceline.coordinator.state.results import ApplyContext, Result, outcome_of
from paceline.coordinator.torchft import state as lighthouses

MAX_NODES = 100


def name_node(context: ApplyContext, request: pb.NodeAddress) -> pb.NodeAddress | pb.Refusal:
    nodes = context.state.nodes
    if request.node == 0:
        return results.invalid("a node has no number", "number nodes from 1")
    if request.node not in nodes and len(nodes) >= MAX_NODES:
        return results.not_now(f"{MAX_NODES} nodes have an address", "forget those that were removed")
    address = pb.NodeAddress(node=request.node, address=request.address)
    current = nodes.get(request.node)
    if request.address != ("" if current is None else current.address):
        context.changed(address)
    if request.address:
        nodes[request.node] = address
    else:
        nodes.pop(request.node, None)
    return address


Record = TypeVar("Record", bound=Message)


def pack_state(state: CoordinatorRecords) -> bytes:
    message = pb.State(
        applied=state.applied,
        now_ms=state.now_ms,
        elapsed_ms=state.elapsed_ms,
        forgotten_generation=state.forgotten_generation,
        nodes=state.nodes.values(),
        actions=state.actions.values(),
    )
    for session in state.sessions.values():
        _pack_session(session, message.sessions.add())
    for record in (*state.runs.values(), *state.ended_runs.values()):
        _pack_run(record, message.runs.add())
    for lighthouse in state.lighthouses.values():
        message.lighthouses.add(lighthouse=lighthouse.lighthouse, issued=lighthouse.issued)
    return message.SerializeToString(deterministic=True)


def unpack_state(data: bytes, state: CoordinatorRecords) -> None:
    """Into a fresh state."""
    message = pb.State.FromString(data)
    state.applied = message.applied
    state.now_ms = message.now_ms
    state.elapsed_ms = message.elapsed_ms
    state.forgotten_generation = message.forgotten_generation
    state.nodes = {node.node: _copy(node) for node in message.nodes}
    state.actions = {action.action: _copy(action) for action in message.actions}
    for stored in message.sessions:
        session = _unpack_session(stored)
        state.sessions[session.session] = session
        state.nonces[session.by, session.nonce] = session.session
        state.answer_bytes += session.answer_bytes
    for stored_run in message.runs:
        record = _unpack_run(stored_run)
        (state.ended_runs if record.has_ended else state.runs)[record.run.run] = record
    for stored_lighthouse in message.lighthouses:
        issued = _copy(stored_lighthouse.issued) if stored_lighthouse.HasField("issued") else None
        state.lighthouses[stored_lighthouse.lighthouse.job] = LighthouseRecord(
            _copy(stored_lighthouse.lighthouse), issued
        )


def _pack_session(session: SessionRecord, message: pb.Session) -> None:
    message.session = session.session
    message.client = session.client
    message.nonce = session.nonce
    message.by = session.by
    message.used_elapsed_ms = session.used_elapsed_ms
    message.first_open = session.first_open
    message.answers.update(session.answers)


def _unpack_session(message: pb.Session) -> SessionRecord:
    session = SessionRecord(
        message.session,
        message.client,
        message.nonce,
        message.by,
        message.used_elapsed_ms,
        message.first_open,
    )
    session.answers = dict(message.answers)
    session.answer_bytes = sum(len(answer) for answer in session.answers.values())
    return session


def _pack_run(record: RunRecord, message: pb.RunState) -> None:
    message.run.CopyFrom(record.run)
    message.generations.extend(record.generations.values())
    message.workers.extend(record.workers.values())
    message.workers.extend(record.ended_workers.values())
    message.servers.extend(record.servers.values())
    message.checkpoints.extend(record.committed.values())
    message.checkpoints.extend(record.pending.values())
    message.samples.CopyFrom(samples.cursor_message(record.samples))
    message.leases.extend(record.leases.values())
    message.leases.extend(record.consumed.values())
    message.alerts.extend(record.alerts.values())
    if record.offer is not None:
        message.offer.CopyFrom(record.offer)


def _unpack_run(message: pb.RunState) -> RunRecord:
    record = RunRecord(_copy(message.run))
    cursor = message.samples
    returned = [(item.first, item.end) for item in cursor.returned]
    record.samples = Cursor(cursor.epoch, cursor.next, cursor.committed, returned)
    record.generations = {item.number: _copy(item) for item in message.generations}
    record.servers = {item.shard: _copy(item) for item in message.servers}
    record.alerts = {mark.alert: _copy(mark) for mark in message.alerts}
    record.offer = _copy(message.offer) if message.HasField("offer") else None
    for worker in message.workers:
        if worker.phase in (pb.WORKER_JOINED, pb.WORKER_ACTIVE):
            record.workers[worker.worker] = _copy(worker)
        else:
            record.ended_workers[worker.incarnation] = _copy(worker)
    for checkpoint in message.checkpoints:
        is_committed = checkpoint.phase == pb.CHECKPOINT_COMMITTED
        (record.committed if is_committed else record.pending)[checkpoint.step] = _copy(checkpoint)
    for lease in message.leases:
        (record.consumed if lease.is_committed else record.leases)[lease.lease] = _copy(lease)
    return record


def _copy(message: Record) -> Record:
    """A part of a message would keep the memory of the whole snapshot."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


Handler = Callable[[ApplyContext, Any], Result]  # Any: each takes its own message; the table below pairs them

HANDLERS: dict[str, Handler] = {
    "open_session": sessions.open_session,
    "close_session": sessions.close_session,
    "name_node": name_node,
    "create_run": runs.create_run,
    "end_run": runs.end_run,
    "form_generation": generations.form,
    "revoke_generation": generations.revoke,
    "commit_step": runs.commit_step,
    "offer_run": runs.offer_run,
    "place_server": runs.place_server,
    "promote_backup": runs.promote_backup,
    "lease_samples": samples.lease,
    "commit_samples": samples.commit,
    "join": runs.join_run,
    "leave": runs.leave_run,
    "lose_worker": runs.lose_worker,
    "begin_checkpoint": checkpoints.begin,
    "shard_durable": checkpoints.shard_durable,
    "drop_checkpoint": checkpoints.drop,
    "request_action": actions.request_action,
    "report_action": actions.report_action,
    "acknowledge_alert": actions.acknowledge_alert,
    "forget_alert": actions.forget_alert,
    "open_lighthouse": lighthouses.open_lighthouse,
    "issue_quorum": lighthouses.issue,
    "forget_lighthouse": lighthouses.forget,
}
# Records are bounded in number; this bounds them in bytes. Plans and lists of members may be long.
MAX_COMMAND_BYTES = 64 << 10
MAX_LONG_COMMAND_BYTES = 1 << 20
_LONG = ("create_run", "form_generation", "issue_quorum")


@dataclass(frozen=True, slots=True)
class Applied:
    outcome: pb.Outcome
    changes: tuple[pb.Change, ...] = ()


class CoordinatorState(CoordinatorRecords):
    __slots__ = ()

    @classmethod
    def restore(cls, data: bytes) -> Self:
        state = cls()
        unpack_state(data, state)
        return state

    def snapshot(self) -> bytes:
        return pack_state(self)

    def apply(self, index: int, data: bytes) -> Applied:
        assert index > self.applied, f"entry {index} came after entry {self.applied}"
        self.applied = index
        command = _parse(data)
        if isinstance(command, pb.Refusal):
            return Applied(outcome_of(index, command))
        self.now_ms = max(self.now_ms, command.at_ms)
        self.elapsed_ms += max(0, command.elapsed_ms)
        sessions.drop_expired(self)
        if command.session:
            earlier = sessions.earlier_answer(self, command)
            if isinstance(earlier, pb.Outcome):
                return Applied(earlier)
            if earlier is not None:
                return Applied(outcome_of(index, earlier))
        context = ApplyContext(self, index, command.by, command.session)
        outcome = outcome_of(index, _dispatch(context, command))
        if command.session:
            sessions.remember(self, command, outcome)
        return Applied(outcome, tuple(context.changes))


def _parse(data: bytes) -> pb.Command | pb.Refusal:
    try:
        command = pb.Command.FromString(data)
    except DecodeError:
        return results.invalid(
            f"an entry of {len(data)} bytes is not a command", "send commands of cluster.proto"
        )
    kind = command.WhichOneof("what")
    if kind is None:
        return results.invalid(
            "an entry holds a command that this version does not support", "upgrade this node"
        )
    max_bytes = MAX_LONG_COMMAND_BYTES if kind in _LONG else MAX_COMMAND_BYTES
    if len(data) > max_bytes:
        return results.invalid(f"a command ({kind}) has {len(data)} bytes", f"send {max_bytes} bytes at most")
    return command


def _dispatch(context: ApplyContext, command: pb.Command) -> Result:
    kind = command.WhichOneof("what")
    assert kind is not None, "a parsed command is of a known kind"
    return HANDLERS[kind](context, getattr(command, kind))
