"""How does one entry of the log change the state? The same on every node, or not at all.

No clock, no dice, no exceptions: time comes with the command, numbers are log
indexes, and a command that cannot be applied is answered with a refusal. Calendar
time is recorded and never compared: clocks are set, and leaders' clocks differ.
What depends on time depends on `elapsed_ms`, the time that leaders have run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from google.protobuf.message import DecodeError

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import (
    actions,
    alerts,
    checkpoints,
    generations,
    lighthouses,
    members,
    nodes,
    refuse,
    runs,
    samples,
    servers,
    sessions,
    snapshot,
)
from paceline.coordinator.state.model import ClusterRecords
from paceline.coordinator.state.turn import Result, Turn, outcome_of

Handler = Callable[[Turn, Any], Result]  # Any: each takes its own message; the table below pairs them

HANDLERS: dict[str, Handler] = {
    "open_session": sessions.open_session,
    "close_session": sessions.close_session,
    "name_node": nodes.name_node,
    "create_run": runs.create,
    "end_run": runs.end,
    "form_generation": generations.form,
    "revoke_generation": generations.revoke,
    "commit_step": runs.commit_step,
    "place_server": servers.place,
    "promote_backup": servers.promote,
    "lease_samples": samples.lease,
    "commit_samples": samples.commit,
    "join": members.join,
    "leave": members.leave,
    "lose_worker": members.lose,
    "begin_checkpoint": checkpoints.begin,
    "shard_durable": checkpoints.shard_durable,
    "drop_checkpoint": checkpoints.drop,
    "request_action": actions.request,
    "report_action": actions.report,
    "acknowledge_alert": alerts.acknowledge,
    "forget_alert": alerts.forget,
    "open_lighthouse": lighthouses.open_lighthouse,
    "issue_quorum": lighthouses.issue,
    "forget_lighthouse": lighthouses.forget,
}
# What is kept is bounded in number; this bounds it in bytes. Plans and lists of members may be long.
MOST_BYTES = 64 << 10
MOST_BYTES_OF_LONG = 1 << 20
_LONG = ("create_run", "form_generation", "issue_quorum")


@dataclass(frozen=True, slots=True)
class Applied:
    outcome: pb.Outcome
    changes: tuple[pb.Change, ...] = ()


class ClusterState(ClusterRecords):
    __slots__ = ()

    @classmethod
    def restore(cls, data: bytes) -> Self:
        state = cls()
        snapshot.unpack(data, state)
        return state

    def snapshot(self) -> bytes:
        return snapshot.pack(self)

    def apply(self, index: int, data: bytes) -> Applied:
        assert index > self.applied, f"entry {index} came after entry {self.applied}"
        self.applied = index
        command = _parsed(data)
        if isinstance(command, pb.Refusal):
            return Applied(outcome_of(index, command))
        self.now_ms = max(self.now_ms, command.at_ms)
        self.elapsed_ms += max(0, command.elapsed_ms)
        sessions.drop_silent(self)
        if command.session:
            earlier = sessions.earlier_answer(self, command)
            if isinstance(earlier, pb.Outcome):
                return Applied(earlier)
            if earlier is not None:
                return Applied(outcome_of(index, earlier))
        turn = Turn(self, index, command.by, command.session)
        outcome = outcome_of(index, _dispatch(turn, command))
        if command.session:
            sessions.remember(self, command, outcome)
        return Applied(outcome, tuple(turn.changes))


def _parsed(data: bytes) -> pb.Command | pb.Refusal:
    try:
        command = pb.Command.FromString(data)
    except DecodeError:
        return refuse.invalid(
            f"an entry of {len(data)} bytes is not a command", "send commands of cluster.proto"
        )
    kind = command.WhichOneof("what")
    if kind is None:
        return refuse.invalid("an entry holds no command that this version knows", "upgrade this node")
    most = MOST_BYTES_OF_LONG if kind in _LONG else MOST_BYTES
    if len(data) > most:
        return refuse.invalid(f"a command ({kind}) has {len(data)} bytes", f"send {most} bytes at most")
    return command


def _dispatch(turn: Turn, command: pb.Command) -> Result:
    kind = command.WhichOneof("what")
    assert kind is not None, "a parsed command is of a known kind"
    return HANDLERS[kind](turn, getattr(command, kind))
