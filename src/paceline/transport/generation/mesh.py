"""Mesh: the TCP connections between all members of one generation, and the messages on them.

All members make the same exchanges in the same order (`Mesh.swap`): each sends at most one message to every
other one, and receives at most one from each. A message has a head of fixed size with the generation, its
number on this connection, its kind and its lengths; then `meta`, a few numbers; then the payload, which goes
straight into the memory that the receiver names once it has seen `meta`. Every length is checked before
memory is taken for it, and nothing is ever unpickled. So a message of another generation, out of order or of
another kind ends the connection.

The training thread sends and receives on all connections at once, without further threads: no member can
block another by sending first. A connection that ends is an error at once for every worker that needs it. A
wait ends when the peer has been silent for the timeout, or by `wake`, which other threads call when the
generation is over.
"""

import os
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from paceline.core.clock import ActiveTimeout, Clock
from paceline.core.errors import PeerLostError, ProtocolError, SilenceError
from paceline.transport.tcp_wire import shut

MAGIC = 0x50434C47  # "PCLG"
_HEAD = struct.Struct("!IIQQIQ")  # magic, kind, generation, number, bytes of meta, bytes of the payload
MAX_META_BYTES = 1 << 20
_TLS_PART_BYTES = 1 << 18  # each is progress: a large state may take longer than the timeout
_MAX_PARTS = 512  # of one sendmsg; the kernel's limit is 1024
_NEXT = "the run continues in the next generation"


class Kind(IntEnum):
    """What a message belongs to; both sides know which one comes next."""

    NUMBERS = 1
    STATE = 2
    PIECES = 3  # of the slots of shards, to the rank that averages them
    MEANS = 4
    FLAGS = 5
    VECTOR = 6
    SLOTS = 7  # of whole shards, to the ranks that need them


@dataclass(frozen=True, slots=True)
class Message:
    meta: bytes = b""
    payload: Sequence[memoryview] = ()  # bytes, without empty views


# For (sender, meta, payload bytes): where the payload goes. Raises ProtocolError for a wrong length.
Places = Callable[[int, bytes, int], Sequence[memoryview]]


def expect_bytes(sender: int, announced: int, expected: int) -> None:
    if announced != expected:
        raise ProtocolError(
            f"the worker of rank {sender} announced {announced} bytes instead of {expected}",
            "all workers must train the same task with the same options",
        )


class Mesh:
    """One member's connections to all others. Used by one thread, except `wake` and `abort`."""

    def __init__(
        self,
        generation: int,
        names: Sequence[str],  # by rank
        connections: Mapping[int, socket.socket],
        *,
        timeout_s: float,
        is_over: Callable[[], bool],
    ) -> None:
        self.lost = ""  # why a connection broke
        self._generation = generation
        self._names = names
        self._timeout_s = timeout_s
        self._is_over = is_over
        self._links = {rank: _Link(connection) for rank, connection in connections.items()}
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Lock()
        self._is_closed = False
        self._is_aborted = False

    def check(self) -> None:
        """PeerLostError when the generation is over."""
        if self._is_over() or self._is_aborted:
            raise PeerLostError("the generation ended", _NEXT)

    def swap(
        self, kind: Kind, out: Mapping[int, Message], sources: Collection[int], places: Places, clock: Clock
    ) -> int:
        """Send `out` by rank, and receive a message from each of `sources`; the nanoseconds of waiting.

        PeerLostError when the generation ends or a connection is lost; the mesh is not usable then.
        """
        for rank, message in out.items():
            self._links[rank].begin_send(self._generation, kind, message)
        for rank in sources:
            self._links[rank].begin_receive(self._receive(rank, kind, places))
        busy = {rank: self._links[rank] for rank in {*out, *sources}}
        waited_ns = 0
        timeout: ActiveTimeout | None = None
        while busy:
            has_moved = False
            for rank, link in list(busy.items()):
                has_moved |= self._advance(rank, link)
                if link.is_idle:
                    del busy[rank]
            if not busy:
                break
            self.check()
            if timeout is None or has_moved:
                timeout = ActiveTimeout(self._timeout_s)
            before_ns = clock.now_ns()
            self._wait(busy, timeout)
            waited_ns += clock.now_ns() - before_ns
        return waited_ns

    def wake(self) -> None:
        """End the present wait, if the generation is over. Called from any thread."""
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._wakeup, 1)

    def abort(self) -> None:
        """End the present wait and all later ones, though the generation goes on. Called from any thread."""
        self._is_aborted = True
        self.wake()

    def close(self) -> None:
        """Close all connections, by which the other members learn at once that this one has left."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._wakeup)
        for link in self._links.values():
            link.close()

    def _receive(self, rank: int, kind: Kind, places: Places) -> Generator[memoryview, None, None]:
        """The places to fill with one message, in sequence."""
        link = self._links[rank]
        head = bytearray(_HEAD.size)
        yield memoryview(head)
        magic, their_kind, generation, number, meta_bytes, payload_bytes = _HEAD.unpack(head)
        link.received += 1
        if (magic, their_kind, generation, number) != (MAGIC, kind, self._generation, link.received):
            raise ProtocolError(
                f"{self._names[rank]} sent message {number} of generation {generation}, {their_kind} "
                f"({magic:#x}), instead of message {link.received} of {self._generation}, {kind.name}",
                "all workers must run the same version of paceline",
            )
        if meta_bytes > MAX_META_BYTES:
            raise ProtocolError(
                f"{self._names[rank]} announced {meta_bytes} bytes, more than {MAX_META_BYTES}",
                "all workers must run the same version of paceline",
            )
        meta = bytearray(meta_bytes)
        if meta:
            yield memoryview(meta)
        for place in places(rank, bytes(meta), payload_bytes):
            if place:
                yield place

    def _advance(self, rank: int, link: "_Link") -> bool:
        """Send and receive what is possible without waiting; whether that was anything."""
        try:
            return link.advance()
        except (OSError, PeerLostError) as error:
            self.check()
            why = error.what if isinstance(error, PeerLostError) else str(error)
            self.lost = f"the connection to {self._names[rank]} was lost: {why}"
            if isinstance(error, ProtocolError):
                raise
            raise PeerLostError(self.lost, _NEXT) from error

    def _wait(self, busy: Mapping[int, "_Link"], timeout: ActiveTimeout) -> None:
        """Until some connection may be ready, or a wake-up."""
        wait_s = timeout.next_s()
        if not wait_s:
            silent = ", ".join(self._names[rank] for rank in busy)
            self.lost = f"{silent} did not answer for {self._timeout_s:g} s"
            raise SilenceError(
                f"waited {self._timeout_s:g} s for {silent}, and nothing arrived",
                "see the other workers' logs; raise --timeout if a step may take this long",
            )
        poller = select.poll()
        poller.register(self._wakeup, select.POLLIN)
        for link in busy.values():
            poller.register(link.connection, link.events)
        poller.poll(wait_s * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)


class _Link:
    """One connection: what is still to be sent on it, and where what arrives goes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.sent = 0  # messages
        self.received = 0
        self._out: deque[memoryview] = deque()
        self._places: Generator[memoryview, None, None] | None = None
        self._place = memoryview(b"")  # the rest of the present one
        # TLS may have to read in order to send, and the other way round.
        self._sending_needs = select.POLLOUT
        self._receiving_needs = select.POLLIN

    @property
    def is_idle(self) -> bool:
        return not self._out and self._places is None

    @property
    def events(self) -> int:
        sending = self._sending_needs if self._out else 0
        receiving = self._receiving_needs if self._places is not None else 0
        return sending | receiving

    def begin_send(self, generation: int, kind: Kind, message: Message) -> None:
        assert not self._out, "the message before is not yet sent"
        self.sent += 1
        payload_bytes = sum(map(len, message.payload))
        head = _HEAD.pack(MAGIC, kind, generation, self.sent, len(message.meta), payload_bytes)
        self._out.append(memoryview(head + message.meta))
        self._out.extend(message.payload)

    def begin_receive(self, places: Generator[memoryview, None, None]) -> None:
        assert self._places is None, "the message before has not yet arrived"
        self._places = places
        self._place = next(places)

    def advance(self) -> bool:
        """Send and receive in turns: while both ends only sent, both would wait for room in the kernel."""
        has_moved = False
        while self._send() | self._fill():
            has_moved = True
        return has_moved

    def _send(self) -> bool:
        """Send a part, if the kernel takes one; whether it did."""
        if not self._out:
            return False
        try:
            sent = self._send_some()
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._sending_needs = select.POLLOUT
            return False
        except ssl.SSLWantReadError:
            self._sending_needs = select.POLLIN
            return False
        while sent:
            first = self._out.popleft()
            if sent < len(first):
                self._out.appendleft(first[sent:])
                break
            sent -= len(first)
        return True

    def _send_some(self) -> int:
        if isinstance(self.connection, ssl.SSLSocket):  # TLS has no sendmsg, and sends all of it or nothing
            return self.connection.send(self._out[0][:_TLS_PART_BYTES])
        parts = list(self._out) if len(self._out) <= _MAX_PARTS else [self._out[n] for n in range(_MAX_PARTS)]
        return self.connection.sendmsg(parts)

    def _fill(self) -> bool:
        """Receive a part, if one has arrived; whether it has."""
        if self._places is None:
            return False
        try:
            count = self.connection.recv_into(self._place)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._receiving_needs = select.POLLIN
            return False
        except ssl.SSLWantWriteError:
            self._receiving_needs = select.POLLOUT
            return False
        if count == 0:
            raise PeerLostError("the peer closed the connection", "see its log for the reason")
        self._place = self._place[count:]
        if not self._place:
            self._next_place()
        return True

    def _next_place(self) -> None:
        assert self._places is not None, "something is being received"
        place = next(self._places, None)
        if place is None:
            self._places = None
        else:
            self._place = place

    def close(self) -> None:
        shut(self.connection)
        self.connection.close()
