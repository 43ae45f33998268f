"""What do the other nodes say to us? Frames of messages, now and then a snapshot; only our cluster's."""

from collections.abc import AsyncIterable

import grpc

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.types import Message
from paceline.coordinator.shell import replies, wire
from paceline.coordinator.shell.guard import Context
from paceline.coordinator.shell.node import Node
from paceline.coordinator.shell.services import service

SNAPSHOT_BYTES = 1 << 30


class RaftService:
    def __init__(self, node: Node, cluster: str) -> None:
        self._node, self._cluster = node, cluster

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
        async for frame in frames:
            await self._check_cluster(frame.cluster, context)
            for found in frame.messages:
                try:
                    message = wire.from_wire(found)
                except wire.BadFrameError as error:
                    await replies.bad(context, str(error), "run the same version on all nodes")
                await self._deliver(message, context)
        return pb.Heard()

    async def _install(self, parts: AsyncIterable[pb.SnapshotPart], context: Context) -> pb.Heard:
        try:
            cluster, message = await wire.from_parts(parts, most_bytes=SNAPSHOT_BYTES)
        except wire.BadFrameError as error:
            await replies.bad(context, str(error), "the sender tries again by itself")
        await self._check_cluster(cluster, context)
        await self._deliver(message, context)
        return pb.Heard()

    async def _check_cluster(self, cluster: str, context: Context) -> None:
        if cluster != self._cluster:
            what = f"this node belongs to the cluster {self._cluster!r}, not to {cluster!r}"
            await replies.bad(context, what, "correct --peers or --cluster")

    async def _deliver(self, message: Message, context: Context) -> None:
        if message.to != self._node.me or message.sender == self._node.me:
            what = f"a message from node {message.sender} to node {message.to} reached node {self._node.me}"
            await replies.bad(context, what, "correct the addresses in --peers")
        self._node.deliver(message)
