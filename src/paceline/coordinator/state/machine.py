"""The replicated state machine: apply one log entry, take and restore snapshots.

Every node computes the same result. There is no clock, no random number and no exception: time
comes with the command, ids are log indexes, and a command that cannot be applied is answered
with a refusal. Calendar time is recorded and never compared, because clocks are set, and those of
two leaders differ. Timeouts use `elapsed_ms`, the time that leaders have run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import actions, checkpoints, generations, results, runs, samples, sessions
from paceline.coordinator.state import actions as alerts
from paceline.coordinator.state import runs as members
from paceline.coordinator.state import runs as servers
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


def name_node(turn: ApplyContext, said: pb.NodeAddress) -> pb.NodeAddress | pb.Refusal:
    nodes = turn.state.nodes
    if said.node == 0:
        return results.invalid("a node was named without its number", "number nodes from 1 on")
    if said.node not in nodes and len(nodes) >= MAX_NODES:
        return results.not_now(f"{MAX_NODES} nodes have an address", "forget those that were removed")
    found = pb.NodeAddress(node=said.node, address=said.address)
    known = nodes.get(said.node)
    if said.address != ("" if known is None else known.address):
        turn.changed(found)
    if said.address:
        nodes[said.node] = found
    else:
        nodes.pop(said.node, None)
    return found


Record = TypeVar("Record", bound=Message)


def pack_state(state: CoordinatorRecords) -> bytes:
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


def unpack_state(data: bytes, state: CoordinatorRecords) -> None:
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
    into.samples.CopyFrom(samples.cursor_message(record.samples))
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
    "place_server": servers.place_server,
    "promote_backup": servers.promote_backup,
    "lease_samples": samples.lease,
    "commit_samples": samples.commit,
    "join": members.join_run,
    "leave": members.leave_run,
    "lose_worker": members.lose_worker,
    "begin_checkpoint": checkpoints.begin,
    "shard_durable": checkpoints.shard_durable,
    "drop_checkpoint": checkpoints.drop,
    "request_action": actions.request_action,
    "report_action": actions.report_action,
    "acknowledge_alert": alerts.acknowledge_alert,
    "forget_alert": alerts.forget_alert,
    "open_lighthouse": lighthouses.open_lighthouse,
    "issue_quorum": lighthouses.issue,
    "forget_lighthouse": lighthouses.forget,
}
# What is kept is bounded in number; this bounds it in bytes. Plans and lists of members may be long.
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
        command = _parsed(data)
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
        turn = ApplyContext(self, index, command.by, command.session)
        outcome = outcome_of(index, _dispatch(turn, command))
        if command.session:
            sessions.remember(self, command, outcome)
        return Applied(outcome, tuple(turn.changes))


def _parsed(data: bytes) -> pb.Command | pb.Refusal:
    try:
        command = pb.Command.FromString(data)
    except DecodeError:
        return results.invalid(
            f"an entry of {len(data)} bytes is not a command", "send commands of cluster.proto"
        )
    kind = command.WhichOneof("what")
    if kind is None:
        return results.invalid("an entry holds no command that this version knows", "upgrade this node")
    most = MAX_LONG_COMMAND_BYTES if kind in _LONG else MAX_COMMAND_BYTES
    if len(data) > most:
        return results.invalid(f"a command ({kind}) has {len(data)} bytes", f"send {most} bytes at most")
    return command


def _dispatch(turn: ApplyContext, command: pb.Command) -> Result:
    kind = command.WhichOneof("what")
    assert kind is not None, "a parsed command is of a known kind"
    return HANDLERS[kind](turn, getattr(command, kind))
