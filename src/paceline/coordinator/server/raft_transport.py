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
        applied = CoordinatorState.restore(snapshot.data).applied
    except DecodeError as error:
        raise BadFrameError("a snapshot of what is no state") from error
    if applied > snapshot.index:
        raise BadFrameError(f"a snapshot up to entry {snapshot.index} with entry {applied} in it")


MAX_QUEUED_MESSAGES = 1024  # messages for one peer
RECONNECT_S = 0.05
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Not a pause, in spite of its name: how long a connection may take to come about. Far away and with TLS,
    # or on a busy machine, a short time would never be enough.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)

Dial = Callable[[str], grpc.aio.Channel]
Metadata = tuple[tuple[str, str], ...]


class Peer:
    """The way to one other node."""

    def __init__(self, cluster: str, address: str, dial: Dial, metadata: Metadata) -> None:
        self.address = address
        self.is_connected = False
        self._cluster, self._dial, self._metadata = cluster, dial, metadata
        self._waiting: deque[Message] = deque(maxlen=MAX_QUEUED_MESSAGES)
        self._wake = asyncio.Event()
        self._tasks = {asyncio.create_task(self._keep_talking())}
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

    async def _keep_talking(self) -> None:
        while True:
            try:
                async with self._dial(self.address) as channel:
                    await self._talk(channel)
            except (grpc.aio.AioRpcError, PacelineError):
                pass  # it is down, or refuses us, or has no address we may call: `status` shows it
            self.is_connected = False
            await asyncio.sleep(RECONNECT_S)

    async def _talk(self, channel: grpc.aio.Channel) -> None:
        # Whatever waited while it was down is old news by now.
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
            call.cancel()  # also when it has ended: what it still waits for belongs to the next one

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
    """The ways to all others; follows the address book."""

    def __init__(self, me: NodeId, cluster: str, dial: Dial, metadata: Metadata) -> None:
        self._me, self._cluster, self._dial, self._metadata = me, cluster, dial, metadata
        self._peers: dict[NodeId, Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def follow(self, book: Mapping[NodeId, str]) -> None:
        """Exactly these, at these addresses, from now on."""
        for node, peer in list(self._peers.items()):
            if book.get(node) != peer.address:
                closing = asyncio.create_task(self._peers.pop(node).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        for node, address in book.items():
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
    def __init__(self, node: Node, cluster: str, cuts: Partitions) -> None:
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
                    await services.abort_invalid(
                        context, f"a node cannot say: {complaints[0]}", _SAME_VERSION
                    )
        finally:
            for sender in senders:
                self._node.lost_touch(sender)
        return pb.Heard()

    async def _messages(self, frame: pb.Frame, context: Context) -> list[Message]:
        try:
            found = [from_wire(message) for message in frame.messages]
        except BadFrameError as error:
            await services.abort_invalid(context, str(error), _SAME_VERSION)
        if any(message.kind is Kind.SNAPSHOT for message in found):
            await services.abort_invalid(context, "a snapshot message without its snapshot", _SAME_VERSION)
        return found

    async def _install(self, parts: AsyncIterable[pb.SnapshotPart], context: Context) -> pb.Heard:
        try:
            cluster, message = await from_parts(parts, most_bytes=SNAPSHOT_BYTES)
        except BadFrameError as error:
            await services.abort_invalid(context, str(error), "the sender tries again by itself")
        await self._check_cluster(cluster, context)
        await self._deliver(message, _drop, context)
        return pb.Heard()

    async def _check_cluster(self, cluster: str, context: Context) -> None:
        if cluster != self._cluster:
            what = f"this node belongs to the cluster {self._cluster!r}, not to {cluster!r}"
            await services.abort_invalid(context, what, "correct --peers or --cluster")

    async def _deliver(self, message: Message, complain: ReportInvalid, context: Context) -> None:
        if message.to != self._node.me or message.sender == self._node.me:
            what = f"a message from node {message.sender} to node {message.to} reached node {self._node.me}"
            await services.abort_invalid(context, what, "correct the addresses in --peers")
        if not may_speak_for(caller.get(), message.sender):
            what = f"a message from node {message.sender} came with the certificate of {caller.get().name}"
            await services.abort_invalid(context, what, "give each node its own certificate")
        if not self._cuts.drops(message.sender):
            self._node.deliver(message, complain)


def _drop(why: str) -> None:
    """A stream for one message is over by itself."""


class AddressBook:
    def __init__(self, node: Node, started_with: Mapping[NodeId, str]) -> None:
        self._node, self._started_with = node, dict(started_with)

    def is_at(self, node: NodeId, address: str) -> None:
        """It was started without an address of its own, and has found one."""
        self._started_with[node] = address

    def address(self, node: NodeId) -> str:
        return queries.addresses(self._node.state).get(node) or self._started_with.get(node, "")

    def leader_address(self) -> str:
        leader = self._node.raft.leader
        return "" if leader is None else self.address(leader)

    def others(self) -> dict[NodeId, str]:
        """Those to talk to: everybody who takes part, as far as we know where they are."""
        raft = self._node.raft
        found = {other: self.address(other) for other in raft.membership.everybody - {self._node.me}}
        if raft.leader is not None and raft.leader not in found and raft.leader != self._node.me:
            found[raft.leader] = self.address(raft.leader)  # it leads us while we learn who takes part
        return {other: address for other, address in found.items() if address}
