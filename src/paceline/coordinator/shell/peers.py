"""How do messages reach the other nodes? By one long-lived gRPC stream to each, or not at all.

What cannot be sent now is dropped: Raft asks again. Nothing here waits for a
peer, so a dead one costs the others nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import grpc
import grpc.aio

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.types import Kind, Message, NodeId
from paceline.coordinator.shell import wire
from paceline.errors import PacelineError

MOST_WAITING = 1024  # messages for one peer
RETRY_S = 0.05
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
        self._waiting: deque[Message] = deque(maxlen=MOST_WAITING)
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
            await asyncio.sleep(RETRY_S)

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
            for frame in wire.to_frames(self._cluster, messages):
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
            for part in wire.to_parts(self._cluster, message):
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
