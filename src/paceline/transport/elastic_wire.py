"""Wire protocol of elastic parameter servers: frames, and the connection to the present primary.

Frames have a fixed size and are followed by raw bytes whose number was announced
and is checked before they are received; nothing is ever unpickled. Connections are
made, authenticated and beyond loopback encrypted by handshake.py.

`PrimaryConnection` keeps a request until it is answered, so that it can be sent
again to the next primary; servers recognise requests that they have already served
and do nothing twice.
"""

import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from paceline.core.clock import ActiveTimeout, Clock
from paceline.core.errors import ProtocolError, TrainingError
from paceline.transport import tcp_wire
from paceline.transport.duplex_tls import DuplexTls
from paceline.transport.handshake import NO_GENERATION, Claim, Dialer, Member

MAGIC = 0x50434C45  # "PCLE"
_FRAME = struct.Struct("!IIQQQqQQ")  # magic, kind, rank, incarnation, number, position, time, payload bytes
NO_SHARE = -1
MAX_STATE_BYTES = 1 << 40  # a backup refuses a larger announcement


class MessageKind(IntEnum):
    # Requests of a worker. `number` is the ticket of the share that a push is for.
    JOIN = 1
    PUSH = 2
    PUSH_AND_STOP = 3
    LEAVE = 4
    AGAIN = 7  # the share of the ticket `number` is abandoned after OBSOLETE: request the next one
    # Answers of a server.
    PARAMETERS = 10  # number: the ticket; position: the share; time: the version. NO_SHARE: all is done
    UNKNOWN = 11  # join first
    FENCED = 12  # this incarnation was declared lost: join as a new one
    OBSOLETE = 14  # unsolicited: the others continued without the share of the ticket `number`
    # From a backup to its primary: request and acknowledgements; `number` counts orders.
    FOLLOW = 20
    HAVE = 21
    # From a primary to its backup.
    STATE = 30  # everything up to order `number`
    ORDER = 31  # position: its kind
    RECORDED = 32  # the rows of all orders up to `number` are in the event log
    END = 33


@dataclass(frozen=True, slots=True)
class Frame:
    kind: MessageKind
    rank: int = 0
    incarnation: int = 0
    number: int = 0
    position: int = NO_SHARE
    time: int = 0
    payload_bytes: int = 0


def send(connection: socket.socket, frame: Frame, payload: memoryview | None = None) -> None:
    connection.sendall(_head(frame, 0 if payload is None else len(payload)))
    if payload is not None:
        connection.sendall(payload)


def send_nonblocking(connection: socket.socket, frame: Frame) -> bool:
    """Never waits: send the whole frame, or nothing if there is no room. False: half was sent; hang up."""
    head = _head(frame, 0)
    try:
        if isinstance(connection, DuplexTls):
            return connection.send_now(head) == len(head)
        return connection.send(head, socket.MSG_DONTWAIT) == len(head)
    except BlockingIOError:
        return True


def _head(frame: Frame, payload_bytes: int) -> bytes:
    return _FRAME.pack(
        MAGIC,
        frame.kind,
        frame.rank,
        frame.incarnation,
        frame.number,
        frame.position,
        frame.time,
        payload_bytes,
    )


def receive(connection: socket.socket) -> Frame:
    head = bytearray(_FRAME.size)
    tcp_wire.receive_into(connection, memoryview(head))
    return _parse(head)


def _parse(head: bytearray) -> Frame:
    magic, kind, *rest = _FRAME.unpack(head)
    if magic != MAGIC or kind not in _KINDS:
        raise ProtocolError(
            f"a frame began with {magic:#x}/{kind}, which is not this protocol",
            "both sides must run the same version of paceline",
        )
    return Frame(MessageKind(kind), *rest)


_KINDS = frozenset(MessageKind)


def receive_within(connection: socket.socket, duration_s: float) -> Frame | None:
    """The frame that begins to arrive within this time, if any."""
    head = bytearray(_FRAME.size)
    return _parse(head) if tcp_wire.receive_head_within(connection, head, duration_s) else None


def receive_payload(connection: socket.socket, frame: Frame, place: memoryview) -> None:
    if frame.payload_bytes != len(place):
        raise ProtocolError(
            f"{frame.kind.name} announced {frame.payload_bytes} bytes instead of {len(place)}",
            "both sides must train the same task with the same options",
        )
    tcp_wire.receive_into(connection, place)


def receive_bytes(connection: socket.socket, frame: Frame, *, most: int = MAX_STATE_BYTES) -> bytearray:
    if frame.payload_bytes > most:
        raise ProtocolError(
            f"{frame.kind.name} announced {frame.payload_bytes} bytes, more than the maximum of {most}",
            "both sides must run the same version of paceline",
        )
    data = bytearray(frame.payload_bytes)
    tcp_wire.receive_into(connection, memoryview(data))
    return data


RETRY_S = 0.005
# A host that vanishes closes no connection, and a cut between two hosts is no loss of either at the
# coordinator. The kernel of a frozen process still answers, so this says nothing about processes.
UNANSWERED_MS = 5000  # data or probes, until the connection counts as broken
_PROBE_S = 1


def expect_answers(connection: socket.socket) -> None:
    """Break the connection when the other side's host does not answer for `UNANSWERED_MS`."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)


def connect(
    dialer: Dialer, own: str, incarnation: int, primary: Member, is_primary: Callable[[Member], bool]
) -> socket.socket:
    """Connect to the primary server as the participant `own`; OSError or PeerLostError."""
    claim = Claim(dialer.run, NO_GENERATION, own, incarnation, primary.name, primary.incarnation)
    connection = dialer.dial(
        claim, primary, is_over=lambda: not is_primary(primary), ended=f"{primary.name} is no longer primary"
    )
    connection.settimeout(None)  # a step of others may take long; the route reports lost servers
    expect_answers(connection)
    return connection


class Route(Protocol):
    """Finds the present primary, and this worker's incarnation."""

    def primary(self) -> Member | None:
        """Wait until there is a primary; None: all work is done, and there will be none."""
        ...

    def incarnation(self, after: int) -> int:
        """Wait for this worker's incarnation to be newer than `after`, and return it."""
        ...

    def on_primary_changed(self, call: Callable[[], None]) -> None:
        """Register `call`: called from another thread whenever another server may be primary."""
        ...

    def is_primary(self, place: Member) -> bool:
        """Whether it is the primary in the last known state. Does not block."""
        ...


class PrimaryConnection(ABC):
    """The connection to the present primary; connects again when the primary changes."""

    def __init__(self, route: Route, dialer: Dialer, *, name: str, clock: Clock, timeout_s: float) -> None:
        self._route = route
        self._dialer = dialer
        self._name = name
        self._clock = clock
        self._timeout_s = timeout_s
        self._connection: socket.socket | None = None
        self._place: Member | None = None
        self._lock = threading.Lock()  # the route's thread shuts the connection that this worker waits on
        self._timeout: ActiveTimeout | None = None  # while no server accepts
        route.on_primary_changed(self._shut_former)

    @abstractmethod
    def _repeat_request(self, connection: socket.socket) -> None:
        """Send the last request."""

    def close(self) -> None:
        self._route.on_primary_changed(lambda: None)
        self._disconnect()

    def _connected(self) -> socket.socket | None:
        """A connection to the primary, on which the request was sent; None: all work is done."""
        if self._connection is not None:
            return self._connection
        place = self._route.primary()
        if place is None:
            return None
        with self._lock:
            self._place = place
        own = self._route.incarnation(0)
        connection = connect(self._dialer, self._name, own, place, self._route.is_primary)
        with self._lock:
            self._connection = connection
        self._timeout = None
        self._shut_former()  # the primary may have changed before the connection was stored
        self._repeat_request(connection)
        return connection

    def _shut_former(self) -> None:
        """Shut the connection to a former primary: a frozen server never closes it."""
        with self._lock:
            if self._place is None or self._route.is_primary(self._place):
                return
            if self._connection is None:
                self._dialer.wake()
            else:
                tcp_wire.shut(self._connection)

    def _lose(self, error: Exception) -> None:
        """The server is lost, or does not accept: disconnect and pause before the next attempt."""
        self._disconnect()
        if self._timeout is None:
            self._timeout = ActiveTimeout(self._timeout_s, now_s=lambda: self._clock.now_ns() / 1e9)
        elif not self._timeout.next_s():
            raise TrainingError(
                f"no parameter server has responded for {self._timeout_s:g} s: {error}",
                "see the servers' logs; raise --timeout if responses may take this long",
            ) from error
        self._clock.sleep(RETRY_S)

    def _disconnect(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
