"""What goes over the wire between workers, a primary server and its backup in an elastic run?

Frames of a fixed size, then raw bytes whose number was announced and is
checked before they are received; nothing is ever unpickled. Whoever connects
proves that it holds the run's token first (see tcp_wire.py). Loopback only.
"""

import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from paceline.errors import ProtocolError
from paceline.transport import tcp_wire

MAGIC = 0x50434C45  # "PCLE"
_FRAME = struct.Struct("!IIQQQqQQ")  # magic, kind, rank, incarnation, number, position, time, payload bytes
NO_SHARE = -1
LARGEST_STATE = 1 << 40  # a backup believes no bigger announcement


class Say(IntEnum):
    # A worker asks. `number` is the ticket of the share that a push is for.
    JOIN = 1
    PUSH = 2
    PUSH_AND_STOP = 3
    LEAVE = 4
    # Of a part that hands out no shares: a push names its share by `position`.
    PULL = 5
    GATHER = 6  # a server asks: everything that you hold
    AGAIN = 7  # the share of the ticket `number` is abandoned, as we were told: what next?
    # A server answers.
    PARAMETERS = 10  # number: the ticket; position: the share; time: the version. NO_SHARE: all is done
    UNKNOWN = 11  # join first
    FENCED = 12  # this incarnation was given up: join as a new one
    APPLIED = 13  # this part has the share, from this push or an earlier one
    OBSOLETE = 14  # unasked: the others went on without the share of the ticket `number`
    # A backup asks a primary, and confirms; `number` counts orders.
    FOLLOW = 20
    HAVE = 21
    # A primary tells its backup.
    STATE = 30  # everything up to order `number`; also what GATHER is answered
    ORDER = 31  # position: its kind
    RECORDED = 32  # the rows of all orders up to `number` are in the event log
    END = 33


@dataclass(frozen=True, slots=True)
class Frame:
    say: Say
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


def is_sent_at_once(connection: socket.socket, frame: Frame) -> bool:
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
    return Frame(Say(kind), *rest)


_KINDS = frozenset(Say)


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


def receive_bytes(connection: socket.socket, frame: Frame, *, most: int = LARGEST_STATE) -> bytearray:
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
