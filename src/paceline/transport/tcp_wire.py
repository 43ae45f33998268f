"""Wire protocol of the TCP parameter store: frames, and authentication by the run's token.

Frames have a fixed size and are followed by the raw bytes of one vector, received
straight into its memory. Lengths are checked against what both sides already know
before a byte is received, and nothing is ever unpickled. Both sides first prove that
they hold the run's token, without sending it: an HMAC over the other side's nonce.
Beyond loopback the connection must be TLS (see tcp_store.py).
`UnauthenticatedConnections` limits how many connections have not proven the token,
and for how long; `accept` survives an exhausted file-descriptor table.
"""

import errno
import hashlib
import hmac
import os
import select
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import PeerLostError, ProtocolError
from paceline.transport.ports import Request

MAGIC = 0x50434C31  # "PCL1": the protocol's version is in its name
_FRAME = struct.Struct("!IIQQqQ")  # magic, kind, rank, number, position, payload bytes
NONCE_BYTES = 32
REFUSALS_S = 60.0  # between two lines about connections that are refused for the same reason
_CLOSED = "the peer closed the connection"
_CLOSED_HINT = "see its log for the reason"


HELLO = 100  # a worker's first frame; number: bytes of one vector
PARAMETERS = 101  # a server's answer; number: version; position: the share, or NOTHING_LEFT
AT_END = 103  # from a server: no share is left, and the answer follows when all work is done
OBSOLETE = 102  # from a server: steps on versions before `number` are no longer needed
NOTHING_LEFT = -1
_KINDS = frozenset({HELLO, PARAMETERS, OBSOLETE, AT_END, *Request})


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int  # a Request, HELLO, PARAMETERS, OBSOLETE or AT_END
    rank: int
    number: int
    payload_bytes: int
    position: int = NOTHING_LEFT


HANDSHAKE_TIMEOUT_S = 5.0  # timeout for a connection to prove the token
MAX_UNAUTHENTICATED = 64
_BACK_OFF_S = 0.05
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CLOSED_LISTENER = (errno.EBADF, errno.EINVAL)


class UnauthenticatedConnections:
    """Connections that have not proven the token yet. Beyond the limits the oldest is closed."""

    def __init__(self, maximum: int = MAX_UNAUTHENTICATED, handshake_s: float = HANDSHAKE_TIMEOUT_S) -> None:
        self._maximum = maximum
        self._handshake_s = handshake_s
        self._since_s: dict[socket.socket, float] = {}  # oldest first
        self._lock = threading.Lock()

    def add(self, connection: socket.socket) -> None:
        now_s = monotonic_s()
        with self._lock:
            self._since_s[connection] = now_s
            late = [other for other, since_s in self._since_s.items() if now_s - since_s > self._handshake_s]
            excess = list(self._since_s)[: max(0, len(self._since_s) - self._maximum)]
            for other in {*late, *excess}:
                self._shut(other)

    def remove(self, connection: socket.socket) -> None:
        """It has proven the token, or is closed."""
        with self._lock:
            self._since_s.pop(connection, None)

    def shut_oldest(self) -> None:
        with self._lock:
            if self._since_s:
                self._shut(next(iter(self._since_s)))

    def shut_all(self) -> None:
        with self._lock:
            for connection in list(self._since_s):
                self._shut(connection)

    def _shut(self, connection: socket.socket) -> None:
        """Shut the connection; its thread gets an error, and closes it."""
        del self._since_s[connection]
        shut(connection)


class Refusals:
    """Lines about refused connections: one a minute for each reason, since a stranger may make thousands."""

    def __init__(self) -> None:
        self._printed_s: dict[str, float] = {}  # by reason
        self._omitted: Counter[str] = Counter()
        self._lock = threading.Lock()

    def print(self, error: Exception) -> None:
        line = self.line(error, monotonic_s())
        if line is not None:
            print(line, flush=True)

    def line(self, error: Exception, now_s: float) -> str | None:
        # The text of a ProtocolError has what the stranger sent, and would be another reason each time.
        reason = type(error).__name__ if isinstance(error, ProtocolError) else str(error)
        with self._lock:
            printed_s = self._printed_s.get(reason)
            if printed_s is not None and now_s - printed_s < REFUSALS_S:
                self._omitted[reason] += 1
                return None
            self._printed_s[reason] = now_s
            omitted = self._omitted.pop(reason, 0)
        return f"refused a connection: {error}" + (f" (and {omitted} like it before)" if omitted else "")


def shut(connection: socket.socket) -> None:
    """Shut both directions, which wakes a thread that waits on the connection. Its owner closes it.

    `SSLSocket.shutdown` would also forget the encryption, and that thread would go on in plain text.
    """
    with suppress(OSError):  # the other side was first
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def accept(
    listener: socket.socket, unauthenticated: UnauthenticatedConnections, is_closed: Callable[[], bool]
) -> socket.socket | None:
    """The next connection, added to `unauthenticated`; None: the listener was closed.

    Without a free file descriptor the listener stays open: the oldest unauthenticated connection is shut,
    and new ones wait in the kernel's queue.
    """
    while not is_closed():
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _CLOSED_LISTENER:
                return None
            if error.errno in _NO_ROOM:
                unauthenticated.shut_oldest()
            SystemClock().sleep(_BACK_OFF_S)
            continue
        unauthenticated.add(connection)
        return connection
    return None


def bytes_of(vector: Tensor) -> memoryview:
    return vector.numpy().data.cast("B")


def send(connection: socket.socket, frame: Frame, payload: memoryview | None = None) -> None:
    head = _FRAME.pack(MAGIC, frame.kind, frame.rank, frame.number, frame.position, frame.payload_bytes)
    if payload is None:
        connection.sendall(head)
    elif isinstance(connection, ssl.SSLSocket):  # TLS has no sendmsg
        connection.sendall(head)
        connection.sendall(payload)
    else:
        # One call for both, so that the other side wakes once.
        sent = connection.sendmsg([head, payload])
        connection.sendall(head[sent:])
        connection.sendall(payload[max(0, sent - len(head)) :])


def receive(connection: socket.socket) -> Frame:
    head = bytearray(_FRAME.size)
    receive_into(connection, memoryview(head))
    return _frame(head)


def receive_within(connection: socket.socket, duration_s: float) -> Frame | None:
    """The frame that begins to arrive within this time, if any."""
    head = bytearray(_FRAME.size)
    return _frame(head) if receive_head_within(connection, head, duration_s) else None


def receive_head_within(connection: socket.socket, head: bytearray, duration_s: float) -> bool:
    """Receive the head of a frame that begins to arrive within this time; False: none does."""
    # Not poll or epoll: they have millisecond resolution, and a worker also sleeps here.
    if not is_buffered(connection) and not select.select([connection], [], [], duration_s)[0]:
        return False
    timeout_s = connection.gettimeout()
    connection.setblocking(False)
    try:
        count = connection.recv_into(head)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False  # TLS also sends protocol messages that are not frames
    finally:
        connection.settimeout(timeout_s)
    if count == 0:
        raise PeerLostError(_CLOSED, _CLOSED_HINT)
    receive_into(connection, memoryview(head)[count:])
    return True


def is_buffered(connection: socket.socket) -> bool:
    """Whether TLS has already read data that the operating system no longer reports."""
    return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0


def _frame(head: bytearray) -> Frame:
    magic, kind, rank, number, position, payload_bytes = _FRAME.unpack(head)
    if magic != MAGIC or kind not in _KINDS:
        raise ProtocolError(
            f"a frame began with {magic:#x}/{kind}, which is not this protocol",
            "both sides must run the same version of paceline",
        )
    return Frame(kind, rank, number, payload_bytes, position)


def receive_into(connection: socket.socket, place: memoryview) -> None:
    # MSG_WAITALL lets the kernel wait for all bytes, so that this thread is woken only once.
    is_whole = connection.gettimeout() is None and not isinstance(connection, ssl.SSLSocket)
    done = 0
    while done < len(place):
        count = connection.recv_into(place[done:], 0, socket.MSG_WAITALL if is_whole else 0)
        if count == 0:
            raise PeerLostError(_CLOSED, _CLOSED_HINT)
        done += count


def expect_payload(frame: Frame, place: memoryview) -> None:
    if frame.payload_bytes != len(place):
        raise ProtocolError(
            f"a frame of kind {frame.kind} announced {frame.payload_bytes} bytes instead of {len(place)}",
            "both sides must train the same task with the same options",
        )


def prove_token(connection: socket.socket, token: bytes, *, side: bytes, other: bytes) -> None:
    """Both sides prove that they hold the token; a replayed or reflected proof fails."""
    own_nonce = os.urandom(NONCE_BYTES)
    connection.sendall(own_nonce)
    theirs = bytearray(NONCE_BYTES)
    receive_into(connection, memoryview(theirs))
    connection.sendall(_proof(token, side, own_nonce, bytes(theirs)))
    proof = bytearray(hashlib.sha256().digest_size)
    receive_into(connection, memoryview(proof))
    if not hmac.compare_digest(bytes(proof), _proof(token, other, bytes(theirs), own_nonce)):
        raise PeerLostError(
            "the peer does not have this run's token",
            "start worker and server from the same run, or give both the same PACELINE_TOKEN",
        )


def _proof(token: bytes, side: bytes, own_nonce: bytes, other_nonce: bytes) -> bytes:
    return hmac.new(token, side + own_nonce + other_nonce, hashlib.sha256).digest()
