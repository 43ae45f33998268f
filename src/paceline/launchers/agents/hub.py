"""Port of a run at which agents connect: a thread with an event loop, and a queue to the launcher.

The thread authenticates connections and moves messages; the launcher, in the main thread, decides. Messages
of one agent stay in order. The queue is bounded: an agent that sends faster than the run folder can be
written waits. What the command sends waits in an outbox for each agent, files on the disk until it is their
turn: a host that does not receive delays no other one. Of the connections that have not proven the secret,
the oldest is ended when there are too many, so strangers neither take all file descriptors nor keep agents
out.
"""

import asyncio
import hmac
import itertools
import queue
import secrets
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from paceline import __version__
from paceline.core.clock import SystemClock, boot_id
from paceline.core.errors import PeerLostError, PortError, ProtocolError
from paceline.launchers.agents.folder import parts_of_open
from paceline.launchers.agents.wire import (
    COMMAND_SILENCE_S,
    HANDSHAKE_S,
    MAX_HELLO_BYTES,
    Message,
    Peer,
)
from paceline.worker.tls import server_tls_context

MAX_WAITING = 64  # messages that the launcher has not taken
MAX_UNAUTHENTICATED = 64
LISTEN_BACKLOG = 128
BACK_OFF_S = 0.05


@dataclass(frozen=True, slots=True)
class Arrived:
    """An agent has connected."""

    host: str
    hello: Message


@dataclass(frozen=True, slots=True)
class Received:
    host: str
    message: Message
    blob: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The connection of an agent has ended."""

    host: str
    why: str


Event = Arrived | Received | Gone


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file whose turn to be sent comes."""

    file: BinaryIO
    name: str


OutboxItem = tuple[Message, bytes] | OpenFile


def own_address(coordinator: str) -> str:
    """The address of this machine from which it reaches the coordinator."""
    host, _, port = coordinator.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise PortError(
            f"this machine has no route to the coordinator at {coordinator}: {error.strerror or error}",
            "name an address that this machine reaches with --coordinator HOST:PORT",
        ) from error


class Hub:
    def __init__(self, address: str) -> None:
        """Listen on a free port of this address."""
        self.secret = secrets.token_bytes(32)
        context, self.certificate = server_tls_context(address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.create_server((address, 0), family=family, backlog=LISTEN_BACKLOG)
        except OSError as error:
            raise PortError(
                f"cannot listen on {address}: {error.strerror}",
                "see the addresses of this machine: ip address",
            ) from error
        port = listener.getsockname()[1]
        self.address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._events: queue.Queue[Event] = queue.Queue(MAX_WAITING)
        self._peers: dict[str, Peer] = {}  # by host
        self._outboxes: dict[str, asyncio.Queue[OutboxItem]] = {}
        self._numbers = itertools.count()
        self._unauthenticated: dict[asyncio.Task[None], None] = {}  # oldest first
        self._is_closing = False
        self._has_begun = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(listener, context), name="agents", daemon=True
        )
        self._thread.start()
        self._has_begun.wait()  # `close` must not stop the loop before

    def next_event(self, timeout_s: float) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def send(self, host: str, message: Message, blob: bytes = b"") -> None:
        """Queue a message to the agent of this host; dropped when its connection has ended."""
        self._put_out(host, (message, blob))

    def send_folder(self, host: str, folder: Path) -> None:
        """A checkpoint: what is complete of it, and its JSON last."""
        files = [path for path in folder.iterdir() if not path.name.startswith(".")]  # without drafts
        for path in sorted(files, key=lambda path: path.suffix == ".json"):
            self.send_file(host, path, f"checkpoints/{folder.name}/{path.name}")

    def send_file(self, host: str, path: Path, name: str) -> None:
        """Queue a file, which the agent stores under this name; OSError when it cannot be opened."""
        self._put_out(host, OpenFile(path.open("rb"), name))  # now: it may be removed before its turn

    def _put_out(self, host: str, item: OutboxItem) -> None:
        def pass_on() -> None:
            outbox = self._outboxes.get(host)
            if outbox is not None:
                outbox.put_nowait(item)
            elif isinstance(item, OpenFile):
                item.file.close()

        self._loop.call_soon_threadsafe(pass_on)

    def drop(self, host: str) -> None:
        """End the connection of this host."""

        def end() -> None:
            peer = self._peers.get(host)
            if peer is not None:
                peer.abort()

        self._loop.call_soon_threadsafe(end)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        while self._thread.is_alive():  # a connection may wait for room in the queue
            with suppress(queue.Empty):
                self._events.get_nowait()
            self._thread.join(0.05)

    def _serve(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        asyncio.set_event_loop(self._loop)
        listener.setblocking(False)
        accepting = self._loop.create_task(self._accept(listener, context))
        self._has_begun.set()
        try:
            self._loop.run_forever()
        finally:
            accepting.cancel()
            for peer in list(self._peers.values()):
                peer.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        with listener:
            while True:
                try:
                    connection, _ = await self._loop.sock_accept(listener)
                except OSError:  # no file descriptor is free, or the connection has ended already
                    self._end_oldest()
                    await asyncio.sleep(BACK_OFF_S)
                    continue
                task = self._loop.create_task(self._connected(connection, context))
                self._unauthenticated[task] = None
                task.add_done_callback(partial(self._ended, connection))
                if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
                    self._end_oldest()

    def _ended(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._unauthenticated.pop(task, None)
        if task.cancelled():
            connection.close()  # also of a task that was cancelled before it began

    def _end_oldest(self) -> None:
        """End the oldest connection that has not proven the secret."""
        oldest = next(iter(self._unauthenticated), None)
        if oldest is not None:
            del self._unauthenticated[oldest]
            oldest.cancel()

    async def _connected(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:  # not TLS, or it has ended
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        with suppress(asyncio.CancelledError):  # the hub is closed: asyncio would report it as an error
            await self._follow(reader, writer)

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        try:
            hello = await self._admit(peer)
        except asyncio.CancelledError:
            peer.close()
            raise
        if hello is None:
            peer.close()
            return
        task = asyncio.current_task()
        assert task is not None, "a connection is followed by a task"
        self._unauthenticated.pop(task, None)
        host = f"{hello['name']}#{next(self._numbers)}"  # a host that connects again is another one
        self._peers[host] = peer
        self._outboxes[host] = asyncio.Queue()
        sending = self._loop.create_task(_send_all(peer, self._outboxes[host]))
        why = "the command ended"
        try:
            await self._put(Arrived(host, hello))
            peer.keep_alive(lambda: {"op": "tick"})
            while True:
                message, blob = await peer.receive(COMMAND_SILENCE_S)
                if "ev" not in message:
                    raise ProtocolError(
                        "a message has no kind", "run the same version of paceline on all hosts"
                    )
                if message["ev"] != "tick":
                    await self._put(Received(host, message, blob))
        except (ConnectionError, PeerLostError) as error:
            why = str(error)
        finally:
            sending.cancel()
            peer.abort()
            del self._peers[host]
            _discard(self._outboxes.pop(host))
            await peer.closed()
            await self._put(Gone(host, why))

    async def _put(self, event: Event) -> None:
        """In the queue, without blocking the other connections."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            await self._loop.run_in_executor(None, self._events.put, event)

    async def _admit(self, peer: Peer) -> Message | None:
        """The first message of an agent that holds the secret; None for any other."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                hello, _ = await peer.receive(HANDSHAKE_S, max_bytes=MAX_HELLO_BYTES)
                proof = str(hello.pop("secret", "")).encode()
                if not hmac.compare_digest(proof, self.secret.hex().encode()):
                    return None
                if hello.get("paceline") != __version__:
                    theirs = str(hello.get("paceline"))
                    peer.send({"op": "refused", "why": f"its paceline is {theirs}, not {__version__}"})
                    await peer.drain()
                    return None
                await _answer_clock(peer, bool(hello.get("boot")) and hello["boot"] == boot_id())
                return hello
        except (ConnectionError, PeerLostError, TimeoutError, ValueError, KeyError):
            return None


async def _send_all(peer: Peer, outbox: "asyncio.Queue[OutboxItem]") -> None:
    """One message after the other, as fast as the peer receives them."""
    try:
        while True:
            item = await outbox.get()
            if isinstance(item, tuple):
                peer.send(*item)
                await peer.drain()
                continue
            with item.file:
                parts = parts_of_open(item.file, item.name)
                while (part := await asyncio.to_thread(next, parts, None)) is not None:
                    peer.send({"op": "file", **part[0]}, part[1])
                    await peer.drain()
    except ConnectionError:
        pass  # its connection is followed, and reported, by `_follow`


def _discard(outbox: "asyncio.Queue[OutboxItem]") -> None:
    while not outbox.empty():
        item = outbox.get_nowait()
        if isinstance(item, OpenFile):
            item.file.close()


CLOCK_ROUNDS = 5


async def _answer_clock(peer: Peer, is_same_host: bool) -> None:
    """Let the agent measure how far the clock of this process is ahead; a host has one clock."""
    clock = SystemClock()
    peer.send({"op": "welcome", "rounds": 0 if is_same_host else CLOCK_ROUNDS})
    for _ in range(0 if is_same_host else CLOCK_ROUNDS):
        await peer.receive(HANDSHAKE_S, max_bytes=MAX_HELLO_BYTES)
        peer.send({"op": "clock", "now_ns": clock.now_ns()})
