"""What do the other nodes say to us? Frames of messages, now and then a snapshot; only our cluster's."""

from collections.abc import AsyncIterable

import grpc

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.types import Kind, Message, NodeId
from paceline.coordinator.shell import replies, wire
from paceline.coordinator.shell.cuts import Cuts
from paceline.coordinator.shell.guard import Context, caller
from paceline.coordinator.shell.identity import may_speak_for
from paceline.coordinator.shell.node import Complain, Node
from paceline.coordinator.shell.services import service

SNAPSHOT_BYTES = 1 << 30
_SAME_VERSION = "run the same version on all nodes"


class RaftService:
    def __init__(self, node: Node, cluster: str, cuts: Cuts) -> None:
        self._node, self._cluster, self._cuts = node, cluster, cuts

    def handler(self) -> grpc.GenericRpcHandler:
        talk = grpc.stream_unary_rpc_method_handler(
            self._talk,
            request_deserializer=pb.Frame.FromString,
            response_serializer=pb.Heard.SerializeToString,
        )
        install = grpc.stream_unary_rpc_method_handler(
            self._install,
            request_deserializer=pb.SnapshotPart.FromString,
            response_serializer=pb.Heard.SerializeToString,
        )
        return service("Raft", {"Talk": talk, "Install": install})

    async def _talk(self, frames: AsyncIterable[pb.Frame], context: Context) -> pb.Heard:
        senders: set[NodeId] = set()
        complaints: list[str] = []
        try:
            async for frame in frames:
                await self._check_cluster(frame.cluster, context)
                for message in await self._messages(frame, context):
                    await self._deliver(message, complaints.append, context)
                    senders.add(message.sender)
                if complaints:  # about earlier ones: a connection that says such things is not kept
                    await replies.bad(context, f"a node cannot say: {complaints[0]}", _SAME_VERSION)
        finally:
            for sender in senders:
                self._node.lost_touch(sender)
        return pb.Heard()

    async def _messages(self, frame: pb.Frame, context: Context) -> list[Message]:
        try:
            found = [wire.from_wire(message) for message in frame.messages]
        except wire.BadFrameError as error:
            await replies.bad(context, str(error), _SAME_VERSION)
        if any(message.kind is Kind.SNAPSHOT for message in found):
            await replies.bad(context, "a snapshot message without its snapshot", _SAME_VERSION)
        return found

    async def _install(self, parts: AsyncIterable[pb.SnapshotPart], context: Context) -> pb.Heard:
        try:
            cluster, message = await wire.from_parts(parts, most_bytes=SNAPSHOT_BYTES)
        except wire.BadFrameError as error:
            await replies.bad(context, str(error), "the sender tries again by itself")
        await self._check_cluster(cluster, context)
        await self._deliver(message, _drop, context)
        return pb.Heard()

    async def _check_cluster(self, cluster: str, context: Context) -> None:
        if cluster != self._cluster:
            what = f"this node belongs to the cluster {self._cluster!r}, not to {cluster!r}"
            await replies.bad(context, what, "correct --peers or --cluster")

    async def _deliver(self, message: Message, complain: Complain, context: Context) -> None:
        if message.to != self._node.me or message.sender == self._node.me:
            what = f"a message from node {message.sender} to node {message.to} reached node {self._node.me}"
            await replies.bad(context, what, "correct the addresses in --peers")
        if not may_speak_for(caller.get(), message.sender):
            what = f"a message from node {message.sender} came with the certificate of {caller.get().name}"
            await replies.bad(context, what, "give each node its own certificate")
        if not self._cuts.drops(message.sender):
            self._node.deliver(message, complain)


def _drop(why: str) -> None:
    """A stream for one message is over by itself."""
