"""Wire protocol of elastic parameter servers: frames, and the connection to the present primary.

Frames have a fixed size and are followed by raw bytes whose number was announced
and is checked before they are received; nothing is ever unpickled. Both sides of a
connection first prove that they hold the run's token (see tcp_wire.py). Loopback
only.

`PrimaryConnection` keeps a request until it is answered, so that it can be sent
again to the next primary; servers recognise requests that they have already served
and do nothing twice.
"""

import select
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from paceline.core.clock import ActiveTimeout, Clock
from paceline.core.errors import ProtocolError, TrainingError
from paceline.transport import tcp_wire

MAGIC = 0x50434C45  # "PCLE"
_FRAME = struct.Struct("!IIQQQqQQ")  # magic, kind, rank, incarnation, number, position, time, payload bytes
NO_SHARE = -1
MAX_STATE_BYTES = 1 << 40  # a backup believes no bigger announcement


class MessageKind(IntEnum):
    # A worker asks. `number` is the ticket of the share that a push is for.
    JOIN = 1
    PUSH = 2
    PUSH_AND_STOP = 3
    LEAVE = 4
    AGAIN = 7  # the share of the ticket `number` is abandoned, as we were told: what next?
    # A server answers.
    PARAMETERS = 10  # number: the ticket; position: the share; time: the version. NO_SHARE: all is done
    UNKNOWN = 11  # join first
    FENCED = 12  # this incarnation was given up: join as a new one
    OBSOLETE = 14  # unasked: the others went on without the share of the ticket `number`
    # A backup asks a primary, and confirms; `number` counts orders.
    FOLLOW = 20
    HAVE = 21
    # A primary tells its backup.
    STATE = 30  # everything up to order `number`
    ORDER = 31  # position: its kind
    RECORDED = 32  # the rows of all orders up to `number` are in the event log
    END = 33


@dataclass(frozen=True, slots=True)
class Frame:
    say: MessageKind
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
    """Never waits: all of it goes, or nothing if there is no room. False: half of it did; hang up."""
    head = _head(frame, 0)
    try:
        return connection.send(head, socket.MSG_DONTWAIT) == len(head)
    except BlockingIOError:
        return True


def _head(frame: Frame, payload_bytes: int) -> bytes:
    return _FRAME.pack(
        MAGIC,
        frame.say,
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
    # Not poll or epoll: they count in milliseconds, and this is also how a worker sleeps.
    return receive(connection) if select.select([connection], [], [], duration_s)[0] else None


def receive_payload(connection: socket.socket, frame: Frame, place: memoryview) -> None:
    if frame.payload_bytes != len(place):
        raise ProtocolError(
            f"{frame.say.name} announced {frame.payload_bytes} bytes where {len(place)} belong",
            "both sides must train the same task with the same options",
        )
    tcp_wire.receive_into(connection, place)


def receive_bytes(connection: socket.socket, frame: Frame, *, most: int = MAX_STATE_BYTES) -> bytearray:
    if frame.payload_bytes > most:
        raise ProtocolError(
            f"{frame.say.name} announced {frame.payload_bytes} bytes, but {most} are the most",
            "both sides must run the same version of paceline",
        )
    data = bytearray(frame.payload_bytes)
    tcp_wire.receive_into(connection, memoryview(data))
    return data


def connect(host: str, port: int, *, token: bytes, side: bytes, timeout_s: float) -> socket.socket:
    """To a server of this run; both sides know the token."""
    connection = socket.create_connection((host, port), timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp_wire.prove_token(connection, token, side=side, other=b"server")
    except BaseException:
        connection.close()
        raise
    return connection


def shut(connection: socket.socket) -> None:
    """Nothing more comes or goes; whoever waits for it in another thread wakes up. Closing is the owner's."""
    with suppress(OSError):  # the other side was first
        connection.shutdown(socket.SHUT_RDWR)


# What was asked is remembered until it is answered, so that the next server can be
# asked the same; servers know what they have done already, and do nothing twice.

SIDE = b"elastic peer"
RETRY_S = 0.005
CONNECT_TIMEOUT_S = 1.0  # for a server to answer at all: one that is frozen does not


@dataclass(frozen=True, slots=True)
class Primary:
    """Where the primary server is."""

    name: str
    incarnation: int
    host: str
    port: int


class Route(Protocol):
    """What knows who is primary, and as whom this worker is in the run."""

    def primary(self) -> Primary | None:
        """Waits until there is one; None: all work is done, and there will be none."""
        ...

    def incarnation(self, after: int) -> int:
        """Ours, once it is a newer one than `after`."""
        ...

    def when_moved(self, call: Callable[[], None]) -> None:
        """To be called, from another thread, whenever another server may be primary."""
        ...

    def is_primary(self, place: Primary) -> bool:
        """As far as is known now; never waits."""
        ...


class PrimaryConnection(ABC):
    """To the primary, whichever process that is."""

    def __init__(self, route: Route, *, token: bytes, clock: Clock, timeout_s: float) -> None:
        self._route = route
        self._token = token
        self._clock = clock
        self._timeout_s = timeout_s
        self._connection: socket.socket | None = None
        self._place: Primary | None = None
        self._lock = threading.Lock()  # the route closes what we wait for
        self._patience: ActiveTimeout | None = None  # while no server listens to us
        route.when_moved(self._leave_the_former)

    @abstractmethod
    def _ask(self, connection: socket.socket) -> None:
        """Say what we last asked."""

    def close(self) -> None:
        self._route.when_moved(lambda: None)
        self._disconnect()

    def _connected(self) -> socket.socket | None:
        """To the primary, which knows what we ask; None: all work is done."""
        if self._connection is not None:
            return self._connection
        place = self._route.primary()
        if place is None:
            return None
        connection = connect(
            place.host, place.port, token=self._token, side=SIDE, timeout_s=CONNECT_TIMEOUT_S
        )
        connection.settimeout(None)  # a step of others may take long; the route tells us of the dead
        with self._lock:
            self._connection = connection
            self._place = place
        self._patience = None
        self._leave_the_former()  # it may have changed before we said where we are
        self._ask(connection)
        return connection

    def _leave_the_former(self) -> None:
        """A frozen server never closes its connection; so we do, when another one took its place."""
        with self._lock:
            if self._connection is None or self._place is None or self._route.is_primary(self._place):
                return
            shut(self._connection)

    def _lose(self, error: Exception) -> None:
        """The server is gone, or does not listen; soon we are told of the next one, and ask that."""
        self._disconnect()
        if self._patience is None:
            self._patience = ActiveTimeout(self._timeout_s, now_s=lambda: self._clock.now_ns() / 1e9)
        elif not self._patience.next_s():
            raise TrainingError(
                f"no parameter server has answered for {self._timeout_s:g} s: {error}",
                "look at the servers' logs; raise --timeout if they may take this long",
            ) from error
        self._clock.sleep(RETRY_S)

    def _disconnect(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
