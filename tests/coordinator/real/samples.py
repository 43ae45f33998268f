"""Samples of every message that nodes and clients send, as bytes, for mutation."""

from google.protobuf.message import Message as AnyMessage

from paceline.coordinator.methods import READS, WRITES
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.raft.membership import encode
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
from paceline.coordinator.server import raft_transport
from paceline.coordinator.state.machine import CoordinatorState

CLUSTER = "paceline"
_REPLICA = torchft.QuorumMember(replica_id="r0:1", address="http://x:1", store_address="x:2", step=7)
THREE = Membership(frozenset({NodeId(1), NodeId(2), NodeId(3)}))


def commands() -> list[pb.Command]:
    """A short story in which nearly every command succeeds."""
    shard = pb.Shard(shard=0, uri="file:///c", bytes=3, sha256="ab" * 32)
    reported: list[tuple[str, AnyMessage]] = [
        ("open_session", pb.OpenSession(client="c", nonce="n")),
        ("name_node", pb.NodeAddress(node=4, address="127.0.0.1:7404")),
        ("create_run", pb.CreateRun(run="run", plan="{}", min_workers=1, max_workers=4, samples=100)),
        ("join", pb.JoinRun(run="run", worker="a", address="x:1", role="worker", facts={"gpu": "0"})),
        ("join", pb.JoinRun(run="run", worker="b", address="x:2", role="worker")),
        ("form_generation", pb.FormGeneration(run="run", workers=["a", "b"], step=0, data_plan="{}")),
        ("commit_step", pb.CommitStep(run="run", generation=1, step=5)),
        ("place_server", pb.PlaceServer(run="run", shard=0, primary="a", backup="b")),
        ("promote_backup", pb.PromoteBackup(run="run", shard=0, epoch=1, reason="r")),
        ("lease_samples", pb.LeaseSamples(run="run", generation=1, worker="a", count=10)),
        ("commit_samples", pb.CommitSamples(run="run", generation=1, lease=10)),
        ("begin_checkpoint", pb.BeginCheckpoint(run="run", generation=1, step=5, shards=1, facts="{}")),
        ("shard_durable", pb.ShardDurable(run="run", generation=1, step=5, shard=shard)),
        ("drop_checkpoint", pb.DropCheckpoint(run="run", step=5)),
        ("request_action", pb.RequestAction(run="run", kind="slow", target="a", details={"factor": "3"})),
        ("report_action", pb.ReportAction(action=15, phase=pb.ACTION_ACCEPTED, note="n")),
        ("acknowledge_alert", pb.AcknowledgeAlert(run="run", alert="slow/a", note="seen")),
        ("forget_alert", pb.ForgetAlert(run="run", alert="slow/a")),
        ("offer_run", pb.OfferRun(run="run", address="x:9", certificate="-", secret=b"s")),
        ("revoke_generation", pb.RevokeGeneration(run="run", generation=1, reason="r")),
        ("lose_worker", pb.LoseWorker(run="run", worker="b", incarnation=5, reason="silent")),
        ("leave", pb.LeaveRun(run="run", worker="a", incarnation=4, reason="done")),
        ("end_run", pb.EndRun(run="run", phase=pb.RUN_FINISHED, reason="done")),
        ("open_lighthouse", pb.OpenLighthouse(job="job", min_replicas=1, join_timeout_ms=1000)),
        ("issue_quorum", pb.IssueQuorum(job="job", seats=[pb.QuorumSeat(member=_REPLICA, nonce="n")])),
        ("forget_lighthouse", pb.ForgetLighthouse(job="job")),
        ("close_session", pb.CloseSession()),
    ]
    return [
        _command(number, name, description) for number, (name, description) in enumerate(reported, start=1)
    ]


def _command(number: int, name: str, message: AnyMessage) -> pb.Command:
    command = pb.Command(session=min(number - 1, 1), sequence=number, by="admin")
    command.at_ms = 1_700_000_000_000 + number
    getattr(command, name).CopyFrom(message)
    return command


def state() -> CoordinatorState:
    """After most of that story."""
    coordinator_state = CoordinatorState()
    for index, command in enumerate(commands()[:18], start=1):
        coordinator_state.apply(index, command.SerializeToString())
    return coordinator_state


def messages(*, term: int = 3, last: int = 5) -> list[Message]:
    """One of every kind, as a node that knows a log up to `last` would send them."""
    a, b, t, end = NodeId(2), NodeId(1), Term(term), Index(last)
    data = [command.SerializeToString() for command in commands()[:3]]
    entries = tuple(Entry(Index(last + 1 + n), t, EntryKind.COMMAND, result) for n, result in enumerate(data))
    member = Entry(Index(last + 1), t, EntryKind.MEMBERSHIP, encode(THREE))
    reply = Message(Kind.APPEND_REPLY, a, b, t, end, rejected=True)
    reply.hint, reply.hint_term = Index(last - 1), Term(1)
    return [
        Message(Kind.PRE_VOTE, a, b, Term(term + 1), end, t),
        Message(Kind.PRE_VOTE_REPLY, a, b, Term(term + 1)),
        Message(Kind.VOTE, a, b, t, end, Term(1)),
        Message(Kind.VOTE_REPLY, a, b, t),
        Message(Kind.APPEND, a, b, t, end, Term(1), entries, Index(last + 2), round=2),
        Message(Kind.APPEND, a, b, t, end, Term(1), (member,), end),
        Message(Kind.APPEND, a, b, t, end, Term(1), (), end, round=3),
        Message(Kind.APPEND_REPLY, a, b, t, end, round=1),
        reply,
        Message(Kind.TIMEOUT_NOW, a, b, t),
    ]


def frames(*, term: int = 3, last: int = 5) -> list[bytes]:
    one_each = messages(term=term, last=last)
    results = [pb.Frame(cluster=CLUSTER, messages=[raft_transport.to_wire(message)]) for message in one_each]
    results.append(pb.Frame(cluster=CLUSTER, messages=map(raft_transport.to_wire, one_each)))
    return [frame.SerializeToString() for frame in results]


def snapshot_parts(*, term: int = 3, index: int = 20) -> list[bytes]:
    snapshot = Snapshot(Index(index), Term(1), THREE, state().snapshot() if index > 1 else b"")
    message = Message(Kind.SNAPSHOT, NodeId(2), NodeId(1), Term(term), snapshot=snapshot)
    return [part.SerializeToString() for part in raft_transport.to_parts(CLUSTER, message)]


def snapshot_in_one_part(*, term: int = 3, index: int = 20) -> bytes:
    whole = pb.SnapshotPart()
    for part in snapshot_parts(term=term, index=index):
        whole.MergeFromString(part)
    return whole.SerializeToString()


def requests() -> dict[tuple[str, str], bytes]:
    """A good request for every method that does not answer for ever."""
    reported = {command.WhichOneof("what") or "": command for command in commands()}
    results = {
        (write.service, write.name): getattr(reported[write.command], write.command).SerializeToString()
        for write in WRITES
    }
    results |= {(read.service, read.name): pb.GetRun(run="run").SerializeToString() for read in READS}
    results["Nodes", "Status"] = b""
    results["Nodes", "Add"] = pb.AddNode(node=4, address="127.0.0.1:7404").SerializeToString()
    results["Nodes", "Remove"] = pb.RemoveNode(node=1).SerializeToString()
    results["Nodes", "StepDown"] = pb.StepDownRequest(to=2).SerializeToString()
    results["Nodes", "Snapshot"] = b""
    # From another cluster, and so refused: however its bytes are damaged, no peer is cut off.
    results["Nodes", "Cut"] = pb.CutRequest(cluster="another", for_ms=1000).SerializeToString()
    ask_quorum = pb.AskQuorum(job="job", requester=_REPLICA, nonce="m")
    results["Lighthouses", "Quorum"] = ask_quorum.SerializeToString()
    beats = pb.ReplicaBeats(job="job", beats=[pb.ReplicaBeat(replica_id="r0:1", age_ms=5)])
    results["Lighthouses", "Beat"] = beats.SerializeToString()
    results["Members", "Live"] = pb.Beat(run="run", worker="a", incarnation=4, step=2).SerializeToString()
    return results
