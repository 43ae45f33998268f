"""Parameter store of an elastic run over TCP: `ElasticStore` (worker) and `ElasticHost` (server).

Worker: a share is assigned under a ticket, and every request carries its ticket. A
push without a response is sent again to the current primary: a server that has it
already repeats its response and applies nothing twice. A worker that was declared
lost receives FENCED; it joins again as a new incarnation, and the work of the former
one does not count. While it computes it may receive OBSOLETE: the others continued
without its share (backup workers).

Server: each connection has its own thread, and all threads put events into one
queue, from which the server's loop takes one at a time. A worker that is frozen or
slow to receive blocks its own thread only. A pushed gradient stays in its
connection's own memory until the server takes it: a fenced worker cannot write into
memory of its successor.
"""

import queue
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from paceline.core.clock import Clock
from paceline.core.errors import PeerLostError, ProtocolError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank, Version
from paceline.transport import elastic_wire as wire
from paceline.transport import tcp_wire
from paceline.transport.duplex_tls import DuplexTls
from paceline.transport.elastic_wire import Frame, MessageKind, PrimaryConnection, Route
from paceline.transport.handshake import Claim, Dialer, Listener, PeerTls, admit
from paceline.transport.ports import PullResult, Slots, Traffic

_PUSHES = (MessageKind.PUSH, MessageKind.PUSH_AND_STOP)


class ElasticStore(PrimaryConnection):
    """A worker's end."""

    def __init__(self, route: Route, rank: Rank, dialer: Dialer, *, clock: Clock, timeout_s: float) -> None:
        self._rank = rank
        self._slots: Slots | None = None
        self._request = MessageKind.JOIN  # the last request, sent again to a new primary
        self._incarnation = self._ticket = 0
        self._obsolete = 0  # the newest ticket whose share is no longer needed
        self._computing = (0, 0)  # the assigned share, and the version of its parameters
        # Called with a share and its version when its gradient does not count.
        self.on_refused: Callable[[int, int], None] = lambda *_: None
        super().__init__(route, dialer, name=f"worker-{rank}", clock=clock, timeout_s=timeout_s)

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        self._slots = Slots.new(numel, dtype, push_bytes)
        return self._slots

    def join(self, clock: StepClock) -> None:
        """Join as a new incarnation. The server determines the clock, so `clock` is not used."""
        self._incarnation = self._route.incarnation(0)
        self._request = MessageKind.JOIN

    def push(self, *, wants_stop: bool) -> Traffic:
        assert self._slots is not None, "open() comes first"
        self._request = MessageKind.PUSH_AND_STOP if wants_stop else MessageKind.PUSH
        self._send_request()
        return Traffic(self._slots.gradients.nbytes, 0, 0)

    def is_obsolete(self) -> bool:
        self._listen(0.0)
        return 0 < self._ticket == self._obsolete

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        end_ns = self._clock.now_ns() + round(duration_s * 1e9)
        while not self.is_obsolete() and (left_ns := end_ns - self._clock.now_ns()) > 0:
            self._listen(left_ns / 1e9)
        return self.is_obsolete()

    def again(self) -> None:
        self._request = MessageKind.AGAIN
        self._send_request()

    def _listen(self, duration_s: float) -> None:
        """Receive OBSOLETE, the only message during a step. pull() handles a lost server."""
        if self._connection is None:
            self._clock.sleep(duration_s)
            return
        try:
            frame = wire.receive_within(self._connection, duration_s)
        except (OSError, PeerLostError):
            self._disconnect()
            return
        if frame is None:
            return
        if frame.kind is not MessageKind.OBSOLETE:
            raise ProtocolError(f"a server sent an unexpected {frame.kind.name}", "see its log")
        self._obsolete = frame.number

    def _send_request(self) -> None:
        try:
            if self._connection is not None:
                self._repeat_request(self._connection)
        except OSError:
            self._disconnect()  # pull() finds the next server, and sends the request there

    def pull(self) -> PullResult:
        assert self._slots is not None, "open() comes first"
        started_ns = self._clock.now_ns()
        while True:
            try:
                connection = self._connected()
                if connection is None:
                    return PullResult(Version(0), None, Traffic(0, 0, self._clock.now_ns() - started_ns))
                answer = self._receive_answer(connection, self._slots)
            except (OSError, PeerLostError) as error:
                self._lose(error)
                continue
            if answer is None:
                continue
            frame, arrived_ns = answer
            wait_ns = arrived_ns - started_ns
            if frame.position == wire.NO_SHARE:
                return PullResult(Version(frame.time), None, Traffic(0, 0, wait_ns))
            traffic = Traffic(0, self._slots.parameters.nbytes, wait_ns)
            return PullResult(Version(frame.time), frame.position, traffic)

    def leave(self) -> None:
        """Send the leave; if it is lost, the server learns of it through the coordinator."""
        if self._connection is None:
            return
        try:
            wire.send(self._connection, Frame(MessageKind.LEAVE, self._rank, self._incarnation))
        except OSError:
            self._disconnect()

    def _receive_answer(self, connection: socket.socket, slots: Slots) -> tuple[Frame, int] | None:
        """(the answer, its time of arrival); None: the worker was refused, and has sent a new join."""
        while (frame := wire.receive(connection)).kind is MessageKind.OBSOLETE:
            pass  # it crossed with the push, which does not count
        arrived_ns = self._clock.now_ns()
        if frame.kind is MessageKind.PARAMETERS:
            if frame.position != wire.NO_SHARE or frame.payload_bytes:
                wire.receive_payload(connection, frame, tcp_wire.bytes_of(slots.parameters))
            self._ticket = frame.number
            self._computing = (frame.position, frame.time)
            return frame, arrived_ns
        if frame.kind not in (MessageKind.FENCED, MessageKind.UNKNOWN):
            raise ProtocolError(f"a server sent {frame.kind.name} to a worker", "see its log")
        if self._request in _PUSHES:
            self.on_refused(*self._computing)
        self._rejoin(is_fenced=frame.kind is MessageKind.FENCED)
        self._repeat_request(connection)
        return None

    def _rejoin(self, *, is_fenced: bool) -> None:
        if is_fenced:
            self._incarnation = self._route.incarnation(self._incarnation)
        self._request = MessageKind.JOIN

    def _repeat_request(self, connection: socket.socket) -> None:
        assert self._slots is not None, "open() comes first"
        frame = Frame(self._request, self._rank, self._incarnation, self._ticket)
        pushes = self._request in _PUSHES
        wire.send(connection, frame, tcp_wire.bytes_of(self._slots.gradients) if pushes else None)


SEND_TIMEOUT_S = 2  # for a backup to receive a message, before it counts as lost
_REQUESTS = (
    MessageKind.JOIN,
    MessageKind.LEAVE,
    MessageKind.AGAIN,
    *_PUSHES,
)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    connection: "WorkerConnection"
    frame: Frame


@dataclass(frozen=True, slots=True)
class Disconnected:
    connection: "WorkerConnection"


@dataclass(frozen=True, slots=True)
class BackupApplied:
    """Another server requests to become the backup."""

    link: "BackupConnection"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The backup has all orders up to this number."""

    link: "BackupConnection"
    number: int


@dataclass(frozen=True, slots=True)
class BackupLost:
    link: "BackupConnection"


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """The coordinator reported a change of the membership."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The rows of all orders up to this number are in the run folder."""

    number: int


HostEvent = (
    WorkerRequest | Disconnected | BackupApplied | Acknowledged | BackupLost | MembershipChanged | Recorded
)


class WorkerConnection:
    """The connection to one worker: one answer per request, and possibly OBSOLETE while it computes."""

    def __init__(self, connection: socket.socket, numel: int, dtype: torch.dtype) -> None:
        self._connection = connection
        self._replies: queue.SimpleQueue[tuple[Frame, torch.Tensor | None] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()  # frames must not interleave
        self._pending: Frame | None = None  # an unsolicited frame that is still to be sent
        self.gradient = torch.empty(numel, dtype=dtype)
        self.incarnation = 0  # incarnation of the worker
        self.answered = 0  # the newest ticket that was sent to it

    def answer(self, frame: Frame, vector: torch.Tensor | None = None) -> None:
        self._replies.put((frame, vector))

    def interrupt(self, frame: Frame) -> None:
        """Send an unsolicited frame now, or right after the present one; never waits, so it may be lost."""
        self._pending = frame
        self._send_pending()

    def _send_pending(self) -> None:
        if not self._sending.acquire(blocking=False):
            return  # the sending thread checks again when it is done
        try:
            frame = self._pending
            self._pending = None
            if frame is not None and not wire.send_nonblocking(self._connection, frame):
                tcp_wire.shut(self._connection)  # half a frame was sent: the worker connects again
        except OSError:
            pass  # the worker hung up, and its thread reports that
        finally:
            self._sending.release()

    def close(self) -> None:
        tcp_wire.shut(self._connection)
        self._replies.put(None)

    def run(self, first: Frame, events: "queue.SimpleQueue[HostEvent]") -> None:
        frame = first
        while True:
            if frame.kind not in _REQUESTS:
                raise ProtocolError(
                    f"a worker sent an unexpected {frame.kind.name}", "check that it is a worker of this run"
                )
            if frame.kind in _PUSHES:
                wire.receive_payload(self._connection, frame, tcp_wire.bytes_of(self.gradient))
            events.put(WorkerRequest(self, frame))
            reply = None if frame.kind is MessageKind.LEAVE else self._replies.get()
            if reply is None:
                return
            answer, vector = reply
            with self._sending:
                wire.send(self._connection, answer, None if vector is None else tcp_wire.bytes_of(vector))
            self._send_pending()
            frame = wire.receive(self._connection)


class BackupConnection:
    """The connection to the backup: it receives every order, in sequence, and acknowledges them."""

    def __init__(self, connection: socket.socket, name: str, incarnation: int) -> None:
        self._connection = connection
        self.name = name
        self.incarnation = incarnation
        # A timeout for sending only: an idle backup sends no acknowledgements.
        if isinstance(connection, DuplexTls):
            connection.send_timeout_s = SEND_TIMEOUT_S
        timeout = struct.pack("ll", SEND_TIMEOUT_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """Raises OSError if the backup is lost or does not receive."""
        wire.send(self._connection, frame, payload)

    def close(self) -> None:
        tcp_wire.shut(self._connection)

    def run(self, events: "queue.SimpleQueue[HostEvent]") -> None:
        events.put(BackupApplied(self))
        while True:
            frame = wire.receive(self._connection)
            if frame.kind is not MessageKind.HAVE:
                raise ProtocolError(
                    f"a backup sent an unexpected {frame.kind.name}", "check that it is a server of this run"
                )
            events.put(Acknowledged(self, frame.number))


class ElasticHost:
    """Listens from its creation; requests before the server is primary wait in the queue."""

    def __init__(
        self,
        host: str,
        *,
        run: str,
        name: str,
        token: bytes,
        numel: int,
        dtype: torch.dtype,
        tls: PeerTls | None = None,
    ) -> None:
        self._numel = numel
        self._dtype = dtype
        self.events: queue.SimpleQueue[HostEvent] = queue.SimpleQueue()
        self._open: dict[socket.socket, WorkerConnection | BackupConnection | None] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        if tls is not None:
            tls.server.sslsocket_class = DuplexTls
        self.listener = Listener(host, run=run, name=name, token=token, tls=tls, admitted=self._serve)

    def close(self) -> None:
        """Stop answering. Answers that are already queued are still sent."""
        self.listener.close()
        with self._lock:
            self._is_closed = True
            parties = list(self._open.items())
        for connection, party in parties:
            if party is None:
                tcp_wire.shut(connection)
            else:
                party.close()

    def join(self) -> None:
        """Wait until every thread has ended; call close() first."""
        self.listener.join()

    def _serve(self, claim: Claim, connection: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                connection.close()
                return
            self._open[connection] = None
        # The peer is lost; one that has sent its first request is reported below.
        with suppress(OSError, PeerLostError):
            self._run_connection(claim, connection)
        with self._lock:
            party = self._open.pop(connection)
            connection.close()
        if isinstance(party, WorkerConnection):
            self.events.put(Disconnected(party))
        elif party is not None:
            self.events.put(BackupLost(party))

    def _run_connection(self, claim: Claim, connection: socket.socket) -> None:
        """Serve an authenticated peer until the connection ends."""
        admit(connection)
        first = wire.receive(connection)
        connection.settimeout(None)
        wire.expect_answers(connection)
        if isinstance(connection, DuplexTls):
            connection.share()
        if first.kind is MessageKind.FOLLOW:
            backup = BackupConnection(connection, claim.dialer, first.incarnation)
            self._register(connection, backup)
            backup.run(self.events)
        else:
            worker = WorkerConnection(connection, self._numel, self._dtype)
            self._register(connection, worker)
            worker.run(first, self.events)

    def _register(self, connection: socket.socket, party: WorkerConnection | BackupConnection) -> None:
        with self._lock:
            self._open[connection] = party
            if self._is_closed:
                raise PeerLostError("this server has ended", "connect to its successor")
