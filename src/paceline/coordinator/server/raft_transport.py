"""Raft transport: one long-lived gRPC stream to each peer, and the service that receives them.

Messages that cannot be sent now are dropped: Raft retries. Nothing here waits for a peer, so a
dead peer does not delay the others. Snapshots travel in parts, by a call of their own, and are
verified before they are delivered.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from paceline.coordinator.proto import cluster_pb2 as pb
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
from paceline.coordinator.raft.validate import LARGEST, is_sane, why_malformed
from paceline.coordinator.server import services
from paceline.coordinator.server.access_policy import may_speak_for
from paceline.coordinator.server.guard import Context, caller
from paceline.coordinator.server.node import Node, ReportInvalid
from paceline.coordinator.server.partitions import Partitions
from paceline.coordinator.server.services import service
from paceline.coordinator.state import queries
from paceline.coordinator.state.machine import CoordinatorState
from paceline.core.errors import PacelineError

FRAME_BYTES = 2 << 20  # messages of one frame; below the limit of a server
PART_BYTES = 1 << 20  # of a snapshot


class BadFrameError(ValueError):
    """A frame that no correct node sends."""


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


def from_wire(wire: pb.RaftMessage) -> Message:
    try:
        kind = Kind(wire.kind)
        entries = tuple(Entry(Index(e.index), Term(e.term), EntryKind(e.kind), e.data) for e in wire.entries)
    except ValueError as error:
        raise BadFrameError(f"a message of an unknown kind: {error}") from error
    message = Message(
        kind,
        NodeId(wire.sender),
        NodeId(wire.to),
        Term(wire.term),
        Index(wire.index),
        Term(wire.log_term),
        entries,
        Index(wire.commit),
    )
    message.rejected = wire.rejected
    message.round = wire.round
    message.is_transfer = wire.is_transfer
    message.hint = Index(wire.hint)
    message.hint_term = Term(wire.hint_term)
    if (why := why_malformed(message)) is not None:
        raise BadFrameError(why)
    return message


def to_frames(cluster: str, messages: Iterable[Message]) -> Iterator[pb.Frame]:
    """Pack messages into as few frames as possible."""
    frame = pb.Frame(cluster=cluster)
    size = 0
    for message in messages:
        wire = to_wire(message)
        wire_bytes = wire.ByteSize()
        if frame.messages and size + wire_bytes > FRAME_BYTES:
            yield frame
            frame = pb.Frame(cluster=cluster)
            size = 0
        frame.messages.append(wire)
        size += wire_bytes
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
    """The name of the receiving group, and the message with its verified snapshot."""
    first: pb.SnapshotPart | None = None
    data = bytearray()
    crc = None
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
        raise BadFrameError("an invalid snapshot")
    if not 1 <= snapshot.index <= LARGEST or not 1 <= snapshot.term <= message.term:
        raise BadFrameError(f"a snapshot up to entry {snapshot.index} of term {snapshot.term}")
    try:
        applied = CoordinatorState.restore(snapshot.data).applied
    except DecodeError as error:
        raise BadFrameError("a snapshot without a valid state") from error
    if applied > snapshot.index:
        raise BadFrameError(f"a snapshot up to entry {snapshot.index} with entry {applied} in it")


MAX_QUEUED_MESSAGES = 1024  # messages for one peer
RECONNECT_S = 0.05
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Despite its name this is the time limit for establishing a connection. With TLS over a long distance, or
    # on a busy machine, a short limit would never suffice.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)

Dial = Callable[[str], grpc.aio.Channel]
Metadata = tuple[tuple[str, str], ...]


class Peer:
    """The stream to one other node."""

    def __init__(self, cluster: str, address: str, dial: Dial, metadata: Metadata) -> None:
        self.address = address
        self.is_connected = False
        self._cluster = cluster
        self._dial = dial
        self._metadata = metadata
        self._waiting: deque[Message] = deque(maxlen=MAX_QUEUED_MESSAGES)
        self._wake = asyncio.Event()
        self._tasks = {asyncio.create_task(self._run())}
        self._installing: asyncio.Task[None] | None = None

    def send(self, message: Message) -> None:
        if message.kind is Kind.SNAPSHOT:
            self._install(message)
            return
        self._waiting.append(message)
        self._wake.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                async with self._dial(self.address) as channel:
                    await self._stream(channel)
            except (grpc.aio.AioRpcError, PacelineError):
                pass  # it is down, refuses the call, or has no usable address: `status` shows it
            self.is_connected = False
            await asyncio.sleep(RECONNECT_S)

    async def _stream(self, channel: grpc.aio.Channel) -> None:
        # Messages that waited while it was down are stale.
        self._waiting.clear()
        await channel.channel_ready()
        talk = channel.stream_unary(
            "/paceline.cluster.v1.Raft/Talk", pb.Frame.SerializeToString, pb.Heard.FromString
        )
        call = talk(self._frames(), metadata=self._metadata)
        self.is_connected = True
        try:
            await call
        finally:
            call.cancel()  # also after its end, so that it consumes no message of the next stream

    async def _frames(self) -> AsyncIterator[pb.Frame]:
        while True:
            await self._wake.wait()
            self._wake.clear()
            messages = list(self._waiting)
            self._waiting.clear()
            for frame in to_frames(self._cluster, messages):
                yield frame

    def _install(self, message: Message) -> None:
        """One snapshot at a time; Raft sends it again if it does not arrive."""
        if self._installing is not None and not self._installing.done():
            return
        self._installing = asyncio.create_task(self._send_snapshot(message))
        self._tasks.add(self._installing)
        self._installing.add_done_callback(self._tasks.discard)

    async def _send_snapshot(self, message: Message) -> None:
        async def parts() -> AsyncIterator[pb.SnapshotPart]:
            for part in to_parts(self._cluster, message):
                yield part

        try:
            async with self._dial(self.address) as channel:
                install = channel.stream_unary(
                    "/paceline.cluster.v1.Raft/Install",
                    pb.SnapshotPart.SerializeToString,
                    pb.Heard.FromString,
                )
                await install(parts(), timeout=60, metadata=self._metadata)
        except (grpc.aio.AioRpcError, PacelineError):
            pass  # Raft sends it again


class Peers:
    """Streams to all other nodes; they follow the address book."""

    def __init__(self, me: NodeId, cluster: str, dial: Dial, metadata: Metadata) -> None:
        self._me = me
        self._cluster = cluster
        self._dial = dial
        self._metadata = metadata
        self._peers: dict[NodeId, Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def follow(self, addresses: Mapping[NodeId, str]) -> None:
        """Connect to exactly these nodes, at these addresses."""
        for node, peer in list(self._peers.items()):
            if addresses.get(node) != peer.address:
                closing = asyncio.create_task(self._peers.pop(node).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        for node, address in addresses.items():
            if node != self._me and node not in self._peers:
                self._peers[node] = Peer(self._cluster, address, self._dial, self._metadata)

    def send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            peer = self._peers.get(message.to)
            if peer is not None:
                peer.send(message)

    def is_connected(self, node: NodeId) -> bool:
        return node in self._peers and self._peers[node].is_connected

    async def close(self) -> None:
        self.follow({})
        await asyncio.gather(*self._closing, return_exceptions=True)


SNAPSHOT_BYTES = 1 << 30
_SAME_VERSION = "run the same version on all nodes"


class RaftService:
    def __init__(self, node: Node, cluster: str, partitions: Partitions) -> None:
        self._node = node
        self._cluster = cluster
        self._partitions = partitions

    def handler(self) -> grpc.GenericRpcHandler:
        talk = grpc.stream_unary_rpc_method_handler(
            self._stream,
            request_deserializer=pb.Frame.FromString,
            response_serializer=pb.Heard.SerializeToString,
        )
        install = grpc.stream_unary_rpc_method_handler(
            self._install,
            request_deserializer=pb.SnapshotPart.FromString,
            response_serializer=pb.Heard.SerializeToString,
        )
        return service("Raft", {"Talk": talk, "Install": install})

    async def _stream(self, frames: AsyncIterable[pb.Frame], context: Context) -> pb.Heard:
        senders: set[NodeId] = set()
        invalid: list[str] = []
        try:
            async for frame in frames:
                await self._check_cluster(frame.cluster, context)
                for message in await self._messages(frame, context):
                    await self._deliver(message, invalid.append, context)
                    senders.add(message.sender)
                if invalid:  # from earlier frames: a connection with invalid messages is closed
                    await services.abort_invalid(context, f"invalid message: {invalid[0]}", _SAME_VERSION)
        finally:
            for sender in senders:
                self._node.lost_touch(sender)
        return pb.Heard()

    async def _messages(self, frame: pb.Frame, context: Context) -> list[Message]:
        try:
            messages = [from_wire(message) for message in frame.messages]
        except BadFrameError as error:
            await services.abort_invalid(context, str(error), _SAME_VERSION)
        if any(message.kind is Kind.SNAPSHOT for message in messages):
            await services.abort_invalid(context, "a snapshot message without its snapshot", _SAME_VERSION)
        return messages

    async def _install(self, parts: AsyncIterable[pb.SnapshotPart], context: Context) -> pb.Heard:
        try:
            cluster, message = await from_parts(parts, most_bytes=SNAPSHOT_BYTES)
        except BadFrameError as error:
            await services.abort_invalid(context, str(error), "the sender retries automatically")
        await self._check_cluster(cluster, context)
        await self._deliver(message, _ignore_invalid, context)
        return pb.Heard()

    async def _check_cluster(self, cluster: str, context: Context) -> None:
        if cluster != self._cluster:
            message = f"this node belongs to the cluster {self._cluster!r}, not to {cluster!r}"
            await services.abort_invalid(context, message, "correct --peers or --cluster")

    async def _deliver(self, message: Message, report_invalid: ReportInvalid, context: Context) -> None:
        if message.to != self._node.me or message.sender == self._node.me:
            what = f"a message from node {message.sender} to node {message.to} reached node {self._node.me}"
            await services.abort_invalid(context, what, "correct the addresses in --peers")
        if not may_speak_for(caller.get(), message.sender):
            what = f"a message from node {message.sender} came with the certificate of {caller.get().name}"
            await services.abort_invalid(context, what, "give each node its own certificate")
        if not self._partitions.drops(message.sender):
            self._node.deliver(message, report_invalid)


def _ignore_invalid(why: str) -> None:
    """Ignore invalid messages: the stream carries one message and then ends."""


class AddressBook:
    def __init__(self, node: Node, started_with: Mapping[NodeId, str]) -> None:
        self._node = node
        self._started_with = dict(started_with)

    def set_address(self, node: NodeId, address: str) -> None:
        """Set the address of a node that was started with port 0, once its port is known."""
        self._started_with[node] = address

    def address(self, node: NodeId) -> str:
        return queries.addresses(self._node.state).get(node) or self._started_with.get(node, "")

    def leader_address(self) -> str:
        leader = self._node.raft.leader
        return "" if leader is None else self.address(leader)

    def others(self) -> dict[NodeId, str]:
        """Addresses of all other members, as far as known."""
        raft = self._node.raft
        addresses = {other: self.address(other) for other in raft.membership.nodes - {self._node.me}}
        if raft.leader is not None and raft.leader not in addresses and raft.leader != self._node.me:
            # The leader of a node that has not received the membership yet.
            addresses[raft.leader] = self.address(raft.leader)
        return {other: address for other, address in addresses.items() if address}
