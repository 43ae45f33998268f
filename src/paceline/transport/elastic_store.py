"""Parameter store of an elastic run over TCP: `ElasticStore` (worker) and `ElasticHost` (server).

Worker: a share is handed out under a ticket, and every request names its ticket. A
push without an answer is sent again to the server that is primary by then: a server
that has it already repeats its answer and applies nothing twice. A worker that was
declared lost is answered FENCED; it joins again as a new incarnation, and what it
had computed does not count. While it computes it may receive OBSOLETE: the others
continued without its share (backup workers).

Server: each connection has a thread of its own, and all of them put events into one
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
from functools import partial

import torch

from paceline.core.clock import Clock
from paceline.core.errors import PeerLostError, ProtocolError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank, Version
from paceline.transport import elastic_wire as wire
from paceline.transport import tcp_wire
from paceline.transport.elastic_wire import SIDE, Frame, MessageKind, PrimaryConnection, Route
from paceline.transport.ports import PullResult, Slots, Traffic

_PUSHES = (MessageKind.PUSH, MessageKind.PUSH_AND_STOP)


class ElasticStore(PrimaryConnection):
    """A worker's end."""

    def __init__(self, route: Route, rank: Rank, *, token: bytes, clock: Clock, timeout_s: float) -> None:
        self._rank = rank
        self._slots: Slots | None = None
        self._asking = MessageKind.JOIN  # what we last asked, or ask again
        self._incarnation = self._ticket = 0
        self._obsolete = 0  # the newest ticket whose share is not wanted any more
        self._computing = (0, 0)  # the share that we were given, and the version to do it with
        # Told of a share and its version when what we made of it does not count.
        self.on_refused: Callable[[int, int], None] = lambda *_: None
        super().__init__(route, token=token, clock=clock, timeout_s=timeout_s)

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        assert push_bytes is None, "what is pushed here is not compressed"
        self._slots = Slots.new(numel, dtype)
        return self._slots

    def join(self, clock: StepClock) -> None:
        """The server decides where our clock begins, so ours does not matter."""
        self._incarnation = self._route.incarnation(0)
        self._asking = MessageKind.JOIN

    def push(self, *, wants_stop: bool) -> Traffic:
        assert self._slots is not None, "open() comes first"
        self._asking = MessageKind.PUSH_AND_STOP if wants_stop else MessageKind.PUSH
        self._say()
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
        self._asking = MessageKind.AGAIN
        self._say()

    def _listen(self, duration_s: float) -> None:
        """While we compute, a server has only one thing to say. If it is lost, pull() finds the next one."""
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
        if frame.say is not MessageKind.OBSOLETE:
            raise ProtocolError(f"a server said {frame.say.name} unasked", "look at its log")
        self._obsolete = frame.number

    def _say(self) -> None:
        try:
            if self._connection is not None:
                self._ask(self._connection)
        except OSError:
            self._disconnect()  # pull() finds the next server, and asks it

    def pull(self) -> PullResult:
        assert self._slots is not None, "open() comes first"
        started_ns = self._clock.now_ns()
        while True:
            try:
                connection = self._connected()
                if connection is None:
                    return PullResult(Version(0), None, Traffic(0, 0, self._clock.now_ns() - started_ns))
                found = self._take_answer(connection, self._slots)
            except (OSError, PeerLostError) as error:
                self._lose(error)
                continue
            if found is not None:
                frame, waited_ns = found
                size = 0 if frame.position == wire.NO_SHARE else self._slots.parameters.nbytes
                position = None if frame.position == wire.NO_SHARE else frame.position
                waited_ns -= started_ns
                return PullResult(Version(frame.time), position, Traffic(0, size, waited_ns))

    def leave(self) -> None:
        """If nobody hears it, the coordinator tells the server that we are gone."""
        if self._connection is None:
            return
        try:
            wire.send(self._connection, Frame(MessageKind.LEAVE, self._rank, self._incarnation))
        except OSError:
            self._disconnect()

    def _take_answer(self, connection: socket.socket, slots: Slots) -> tuple[Frame, int] | None:
        """None: there was another word first, and we have asked anew."""
        while (frame := wire.receive(connection)).say is MessageKind.OBSOLETE:
            pass  # it crossed with our push, which does not count
        waited_ns = self._clock.now_ns()
        if frame.say is MessageKind.PARAMETERS:
            if frame.position != wire.NO_SHARE:
                wire.receive_payload(connection, frame, tcp_wire.bytes_of(slots.parameters))
            self._ticket = frame.number
            self._computing = (frame.position, frame.time)
            return frame, waited_ns
        if frame.say not in (MessageKind.FENCED, MessageKind.UNKNOWN):
            raise ProtocolError(f"a server said {frame.say.name} to a worker", "look at its log")
        if self._asking in _PUSHES:
            self.on_refused(*self._computing)
        self._join_anew(is_over=frame.say is MessageKind.FENCED)
        self._ask(connection)
        return None

    def _join_anew(self, *, is_over: bool) -> None:
        if is_over:
            self._incarnation = self._route.incarnation(self._incarnation)
        self._asking = MessageKind.JOIN

    def _ask(self, connection: socket.socket) -> None:
        assert self._slots is not None, "open() comes first"
        frame = Frame(self._asking, self._rank, self._incarnation, self._ticket)
        pushes = self._asking in _PUSHES
        wire.send(connection, frame, tcp_wire.bytes_of(self._slots.gradients) if pushes else None)


# The server's loop takes from the queue, so orders come one at a time. A worker
# that is frozen or slow to receive holds up its own thread and nobody else. What
# a worker pushes lies in its connection's own memory until the server takes it:
# a worker that was given up cannot write into what belongs to its successor.

MAX_NAME_LENGTH = 128
SEND_TIMEOUT_S = 2  # for a backup to take what it is sent, before it counts as lost
_ASKS = (
    MessageKind.JOIN,
    MessageKind.LEAVE,
    MessageKind.AGAIN,
    *_PUSHES,
)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    talk: "WorkerConnection"
    frame: Frame


@dataclass(frozen=True, slots=True)
class Disconnected:
    talk: "WorkerConnection"


@dataclass(frozen=True, slots=True)
class BackupApplied:
    """Another server wants to be our backup."""

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
    """The coordinator has news."""


HostEvent = WorkerRequest | Disconnected | BackupApplied | Acknowledged | BackupLost | MembershipChanged


class WorkerConnection:
    """With one worker: it asks, and is answered once. While it computes it may have to hear one word more."""

    def __init__(self, connection: socket.socket, numel: int, dtype: torch.dtype) -> None:
        self._connection = connection
        self._replies: queue.SimpleQueue[tuple[Frame, torch.Tensor | None] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()  # frames must not run into each other
        self._word: Frame | None = None  # that is still to be said
        self.gradient = torch.empty(numel, dtype=dtype)
        self.incarnation = 0  # as whom the worker speaks
        self.answered = 0  # the newest ticket that it was sent

    def answer(self, frame: Frame, vector: torch.Tensor | None = None) -> None:
        self._replies.put((frame, vector))

    def interrupt(self, word: Frame) -> None:
        """Say this unasked, now or right behind what is being sent; never waits, so it may be missed."""
        self._word = word
        self._say_word()

    def _say_word(self) -> None:
        if not self._sending.acquire(blocking=False):
            return  # whoever is sending looks when it is done
        try:
            word = self._word
            self._word = None
            if word is not None and not wire.send_nonblocking(self._connection, word):
                wire.shut(self._connection)  # half a frame was sent: it connects again
        except OSError:
            pass  # it hung up, and its thread says so
        finally:
            self._sending.release()

    def close(self) -> None:
        wire.shut(self._connection)
        self._replies.put(None)

    def run(self, first: Frame, heard: "queue.SimpleQueue[HostEvent]") -> None:
        frame = first
        while True:
            if frame.say not in _ASKS:
                raise ProtocolError(f"a worker said {frame.say.name}", "is it a worker of this run?")
            if frame.say in _PUSHES:
                wire.receive_payload(self._connection, frame, tcp_wire.bytes_of(self.gradient))
            heard.put(WorkerRequest(self, frame))
            reply = None if frame.say is MessageKind.LEAVE else self._replies.get()
            if reply is None:
                return
            told, vector = reply
            with self._sending:
                wire.send(self._connection, told, None if vector is None else tcp_wire.bytes_of(vector))
            self._say_word()
            frame = wire.receive(self._connection)


class BackupConnection:
    """With our backup: it is told everything, in order, and confirms."""

    def __init__(self, connection: socket.socket, name: str, incarnation: int) -> None:
        self._connection = connection
        self.name = name
        self.incarnation = incarnation
        # Only for sending: it confirms nothing for as long as there is nothing to do.
        patience = struct.pack("ll", SEND_TIMEOUT_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """OSError: it is gone, or takes nothing."""
        wire.send(self._connection, frame, payload)

    def close(self) -> None:
        wire.shut(self._connection)

    def run(self, heard: "queue.SimpleQueue[HostEvent]") -> None:
        heard.put(BackupApplied(self))
        while True:
            frame = wire.receive(self._connection)
            if frame.say is not MessageKind.HAVE:
                raise ProtocolError(f"a backup said {frame.say.name}", "is it a server of this run?")
            heard.put(Acknowledged(self, frame.number))


class ElasticHost:
    """Listens on loopback from the first moment; who asks before we are primary waits in the queue."""

    def __init__(self, *, numel: int, dtype: torch.dtype, token: bytes) -> None:
        self._numel = numel
        self._dtype = dtype
        self._token = token
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.heard: queue.SimpleQueue[HostEvent] = queue.SimpleQueue()
        self._open: dict[socket.socket, WorkerConnection | BackupConnection | None] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._strangers = tcp_wire.UnauthenticatedConnections()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        """Nobody is answered any more. What was said before is still sent."""
        with self._lock:
            self._is_closed = True
            wire.shut(self._listener)
            parties = list(self._open.items())
        for connection, party in parties:
            if party is None:
                wire.shut(connection)
            else:
                party.close()

    def _start(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, daemon=True)
        self._threads = [known for known in self._threads if known.is_alive()]
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """After close(): until every thread has ended."""
        for thread in list(self._threads):
            thread.join()

    def _accept(self) -> None:
        with self._listener:
            while True:
                connection = tcp_wire.accept(self._listener, self._strangers, lambda: self._is_closed)
                if connection is None:
                    return
                with self._lock:
                    if self._is_closed:
                        connection.close()
                        return
                    self._open[connection] = None
                self._start(partial(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        # Whoever it was is gone, or is no part of this run; who was known is reported below.
        with suppress(OSError, PeerLostError):
            self._hear(connection)
        self._strangers.remove(connection)
        with self._lock:
            party = self._open.pop(connection)
            connection.close()
        if isinstance(party, WorkerConnection):
            self.heard.put(Disconnected(party))
        elif party is not None:
            self.heard.put(BackupLost(party))

    def _hear(self, connection: socket.socket) -> None:
        """Until it ends."""
        connection.settimeout(tcp_wire.HANDSHAKE_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp_wire.prove_token(connection, self._token, side=b"server", other=SIDE)
        first = wire.receive(connection)
        if first.say is MessageKind.FOLLOW:
            name = bytes(wire.receive_bytes(connection, first, most=MAX_NAME_LENGTH)).decode()
            connection.settimeout(None)
            link = BackupConnection(connection, name, first.incarnation)
            self._know(connection, link)
            link.run(self.heard)
        else:
            connection.settimeout(None)
            talk = WorkerConnection(connection, self._numel, self._dtype)
            self._know(connection, talk)
            talk.run(first, self.heard)

    def _know(self, connection: socket.socket, party: WorkerConnection | BackupConnection) -> None:
        self._strangers.remove(connection)
        with self._lock:
            self._open[connection] = party
            if self._is_closed:
                raise PeerLostError("this server has ended", "ask the next one")
