"""How does an elastic server hear its workers and its backup? By a thread for each, and one queue for all.

The server's loop takes from the queue, so orders come one at a time. A worker
that is frozen or slow to receive holds up its own thread and nobody else. What
a worker pushes lies in its connection's own memory until the server takes it:
a worker that was given up cannot write into what belongs to its successor.
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

from paceline.errors import PeerLostError, ProtocolError
from paceline.transport import elastic_wire as wire
from paceline.transport import tcp_wire
from paceline.transport.elastic_wire import Frame, Say
from paceline.transport.server_line import SIDE

LONGEST_NAME = 128
SEND_S = 2  # for a backup to take what it is sent, before it counts as lost
_PUSHES = (Say.PUSH, Say.PUSH_AND_STOP)
_ASKS = (Say.JOIN, Say.LEAVE, Say.PULL, Say.GATHER, Say.AGAIN, *_PUSHES)


@dataclass(frozen=True, slots=True)
class Asked:
    talk: "Talk"
    frame: Frame


@dataclass(frozen=True, slots=True)
class HungUp:
    talk: "Talk"


@dataclass(frozen=True, slots=True)
class Applied:
    """Another server wants to be our backup."""

    link: "Link"


@dataclass(frozen=True, slots=True)
class Has:
    """The backup has all orders up to this number."""

    link: "Link"
    number: int


@dataclass(frozen=True, slots=True)
class Unlinked:
    link: "Link"


@dataclass(frozen=True, slots=True)
class Changed:
    """The coordinator has news."""


Heard = Asked | HungUp | Applied | Has | Unlinked | Changed


class Talk:
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
            word, self._word = self._word, None
            if word is not None and not wire.is_sent_at_once(self._connection, word):
                wire.shut(self._connection)  # half a frame was sent: it connects again
        except OSError:
            pass  # it hung up, and its thread says so
        finally:
            self._sending.release()

    def close(self) -> None:
        wire.shut(self._connection)
        self._replies.put(None)

    def run(self, first: Frame, heard: "queue.SimpleQueue[Heard]") -> None:
        frame = first
        while True:
            if frame.say not in _ASKS:
                raise ProtocolError(f"a worker said {frame.say.name}", "is it a worker of this run?")
            if frame.say in _PUSHES:
                wire.receive_payload(self._connection, frame, tcp_wire.bytes_of(self.gradient))
            heard.put(Asked(self, frame))
            reply = None if frame.say is Say.LEAVE else self._replies.get()
            if reply is None:
                return
            told, vector = reply
            with self._sending:
                wire.send(self._connection, told, None if vector is None else tcp_wire.bytes_of(vector))
            self._say_word()
            frame = wire.receive(self._connection)


class Link:
    """With our backup: it is told everything, in order, and confirms."""

    def __init__(self, connection: socket.socket, name: str, incarnation: int) -> None:
        self._connection, self.name, self.incarnation = connection, name, incarnation
        # Only for sending: it confirms nothing for as long as there is nothing to do.
        patience = struct.pack("ll", SEND_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """OSError: it is gone, or takes nothing."""
        wire.send(self._connection, frame, payload)

    def close(self) -> None:
        wire.shut(self._connection)

    def run(self, heard: "queue.SimpleQueue[Heard]") -> None:
        heard.put(Applied(self))
        while True:
            frame = wire.receive(self._connection)
            if frame.say is not Say.HAVE:
                raise ProtocolError(f"a backup said {frame.say.name}", "is it a server of this run?")
            heard.put(Has(self, frame.number))


class ElasticHost:
    """Listens on loopback from the first moment; who asks before we are primary waits in the queue."""

    def __init__(self, *, numel: int, dtype: torch.dtype, token: bytes) -> None:
        self._numel, self._dtype, self._token = numel, dtype, token
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._open: dict[socket.socket, Talk | Link | None] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._strangers = tcp_wire.Strangers()
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
        if isinstance(party, Talk):
            self.heard.put(HungUp(party))
        elif party is not None:
            self.heard.put(Unlinked(party))

    def _hear(self, connection: socket.socket) -> None:
        """Until it ends."""
        connection.settimeout(tcp_wire.GREET_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp_wire.prove_token(connection, self._token, side=b"server", other=SIDE)
        first = wire.receive(connection)
        if first.say is Say.FOLLOW:
            name = bytes(wire.receive_bytes(connection, first, most=LONGEST_NAME)).decode()
            connection.settimeout(None)
            link = Link(connection, name, first.incarnation)
            self._know(connection, link)
            link.run(self.heard)
        else:
            connection.settimeout(None)
            talk = Talk(connection, self._numel, self._dtype)
            self._know(connection, talk)
            talk.run(first, self.heard)

    def _know(self, connection: socket.socket, party: Talk | Link) -> None:
        self._strangers.remove(connection)
        with self._lock:
            self._open[connection] = party
            if self._is_closed:
                raise PeerLostError("this server has ended", "ask the next one")
