"""How does a worker keep to its parameter server when servers die? It finds the next one, and asks again.

A share is handed out under a ticket, and whatever a worker asks names its
ticket. So a push without an answer is simply sent again to whoever is primary
by then: a server that has it already gives the answer that belongs to it, and
applies nothing twice. A worker that was given up meanwhile is told so; it joins
again as a new incarnation, and what it had computed does not count.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline.clock import Clock
from paceline.errors import PeerLostError, TrainingError
from paceline.ids import Clock as StepClock
from paceline.ids import Rank, Version
from paceline.transport import elastic_wire as wire
from paceline.transport import tcp_wire
from paceline.transport.elastic_wire import Frame, Say
from paceline.transport.ports import Pulled, Slots, Traffic

SIDE = b"elastic peer"
AGAIN_S = 0.005
CONNECT_S = 1.0  # for a server to answer at all: one that is frozen does not


@dataclass(frozen=True, slots=True)
class Primary:
    """Where the primary server of a part is."""

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


class ElasticStore:
    """A worker's end."""

    def __init__(self, route: Route, rank: Rank, *, token: bytes, clock: Clock, timeout_s: float) -> None:
        self._route, self._rank, self._token = route, rank, token
        self._clock, self._timeout_s = clock, timeout_s
        self._connection: socket.socket | None = None
        self._place: Primary | None = None
        self._lock = threading.Lock()  # the route closes what we wait for
        self._slots: Slots | None = None
        self._asking = Say.JOIN  # what we last asked, or ask again
        self._incarnation = self._ticket = 0
        self._alone_since_ns: int | None = None  # since when no server has listened to us
        self._computing = (0, 0)  # the share that we were given, and the version to do it with
        # Told of a share and its version when what we made of it does not count.
        self.on_refused: Callable[[int, int], None] = lambda *_: None
        route.when_moved(self._leave_the_former)

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        assert push_bytes is None, "what is pushed here is not compressed"
        self._slots = Slots.new(numel, dtype)
        return self._slots

    def join(self, clock: StepClock) -> None:
        """The server decides where our clock begins, so ours does not matter."""
        self._incarnation = self._route.incarnation(0)
        self._asking = Say.JOIN

    def push(self, *, wants_stop: bool) -> Traffic:
        assert self._slots is not None, "open() comes first"
        self._asking = Say.PUSH_AND_STOP if wants_stop else Say.PUSH
        try:
            if self._connection is not None:
                self._ask(self._connection)
        except OSError:
            self._disconnect()  # pull() finds the next server, and asks it
        return Traffic(self._slots.gradients.nbytes, 0, 0)

    def pull(self) -> Pulled:
        assert self._slots is not None, "open() comes first"
        started_ns = self._clock.now_ns()
        while True:
            try:
                connection = self._connected()
                if connection is None:
                    return Pulled(Version(0), None, Traffic(0, 0, self._clock.now_ns() - started_ns))
                found = self._take_answer(connection, self._slots)
            except (OSError, PeerLostError) as error:
                self._lose(error)
                continue
            if found is not None:
                frame, waited_ns = found
                size = 0 if frame.position == wire.NO_SHARE else self._slots.parameters.nbytes
                position = None if frame.position == wire.NO_SHARE else frame.position
                waited_ns -= started_ns
                return Pulled(Version(frame.time), position, Traffic(0, size, waited_ns))

    def leave(self) -> None:
        """If nobody hears it, the coordinator tells the server that we are gone."""
        if self._connection is None:
            return
        try:
            wire.send(self._connection, Frame(Say.LEAVE, self._rank, self._incarnation))
        except OSError:
            self._disconnect()

    def close(self) -> None:
        self._route.when_moved(lambda: None)
        self._disconnect()

    def _take_answer(self, connection: socket.socket, slots: Slots) -> tuple[Frame, int] | None:
        """None: there was another word first, and we have asked anew."""
        frame = wire.receive(connection)
        waited_ns = self._clock.now_ns()
        if frame.say is Say.PARAMETERS:
            if frame.position != wire.NO_SHARE:
                wire.receive_payload(connection, frame, tcp_wire.bytes_of(slots.parameters))
            self._ticket, self._computing = frame.number, (frame.position, frame.time)
            return frame, waited_ns
        if frame.say not in (Say.FENCED, Say.UNKNOWN):
            raise PeerLostError(f"a server said {frame.say.name} to a worker", "look at its log")
        if self._asking is not Say.JOIN:
            self.on_refused(*self._computing)
        if frame.say is Say.FENCED:
            self._incarnation = self._route.incarnation(self._incarnation)
        self._asking = Say.JOIN
        self._ask(connection)
        return None

    def _connected(self) -> socket.socket | None:
        """To the primary, which knows what we ask; None: all work is done."""
        if self._connection is not None:
            return self._connection
        place = self._route.primary()
        if place is None:
            return None
        connection = wire.connect(place.host, place.port, token=self._token, side=SIDE, timeout_s=CONNECT_S)
        connection.settimeout(None)  # a step of others may take long; the route tells us of the dead
        with self._lock:
            self._connection, self._place = connection, place
        self._alone_since_ns = None
        self._leave_the_former()  # it may have changed before we said where we are
        self._ask(connection)
        return connection

    def _ask(self, connection: socket.socket) -> None:
        assert self._slots is not None, "open() comes first"
        frame = Frame(self._asking, self._rank, self._incarnation, self._ticket)
        pushes = self._asking is not Say.JOIN
        wire.send(connection, frame, tcp_wire.bytes_of(self._slots.gradients) if pushes else None)

    def _leave_the_former(self) -> None:
        """A frozen server never closes its connection; so we do, when another one took its place."""
        with self._lock:
            if self._connection is None or self._place is None or self._route.is_primary(self._place):
                return
            wire.shut(self._connection)

    def _lose(self, error: Exception) -> None:
        """The server is gone, or does not listen; soon we are told of the next one, and ask that."""
        self._disconnect()
        now_ns = self._clock.now_ns()
        if self._alone_since_ns is None:
            self._alone_since_ns = now_ns
        if now_ns - self._alone_since_ns > self._timeout_s * 1e9:
            raise TrainingError(
                f"no parameter server has answered for {self._timeout_s:g} s: {error}",
                "look at the servers' logs; raise --timeout if they may take this long",
            ) from error
        self._clock.sleep(AGAIN_S)

    def _disconnect(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
