"""How does a worker keep to its parameter server when servers die? It finds the next one, and asks again.

A share is handed out under a ticket, and whatever a worker asks names its
ticket. So a push without an answer is simply sent again to whoever is primary
by then: a server that has it already gives the answer that belongs to it, and
applies nothing twice. A worker that was given up meanwhile is told so; it joins
again as a new incarnation, and what it had computed does not count. While it
computes it may hear that the others went on without its share (backup workers).
"""

import socket
from collections.abc import Callable

import torch

from paceline.clock import Clock
from paceline.errors import PeerLostError, ProtocolError
from paceline.ids import Clock as StepClock
from paceline.ids import Rank, Version
from paceline.transport import elastic_wire as wire
from paceline.transport import tcp_wire
from paceline.transport.elastic_wire import Frame, Say
from paceline.transport.ports import Pulled, Slots, Traffic
from paceline.transport.server_line import Route, ServerLine

_PUSHES = (Say.PUSH, Say.PUSH_AND_STOP)


class ElasticStore(ServerLine):
    """A worker's end."""

    def __init__(self, route: Route, rank: Rank, *, token: bytes, clock: Clock, timeout_s: float) -> None:
        self._rank = rank
        self._slots: Slots | None = None
        self._asking = Say.JOIN  # what we last asked, or ask again
        self._incarnation = self._ticket = 0
        self._obsolete = 0  # the newest ticket whose share is not wanted any more
        self._computing = (0, 0)  # the share that we were given, and the version to do it with
        # Told of a share and its version when what we made of it does not count.
        self.on_refused: Callable[[int, int], None] = lambda *_: None
        super().__init__(route, token=token, clock=clock, timeout_s=timeout_s)

    @property
    def incarnation(self) -> int:
        return self._incarnation

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        assert push_bytes is None, "what is pushed here is not compressed"
        self.use(Slots.new(numel, dtype))
        assert self._slots is not None, "we have just taken them"
        return self._slots

    def use(self, slots: Slots) -> None:
        """Instead of open(): these vectors, which may be a part of longer ones."""
        self._slots = slots

    def join(self, clock: StepClock) -> None:
        """The server decides where our clock begins, so ours does not matter."""
        self._incarnation = self._route.incarnation(0)
        self._asking = Say.JOIN

    def push(self, *, wants_stop: bool) -> Traffic:
        assert self._slots is not None, "open() comes first"
        self._asking = Say.PUSH_AND_STOP if wants_stop else Say.PUSH
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
        self._asking = Say.AGAIN
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
        if frame.say is not Say.OBSOLETE:
            raise ProtocolError(f"a server said {frame.say.name} unasked", "look at its log")
        self._obsolete = frame.number

    def give_up(self) -> None:
        """Another part's server said that we were given up: what we made does not count, and we join anew."""
        self.on_refused(*self._computing)
        self._join_anew(is_over=True)
        self._say()

    def _say(self) -> None:
        try:
            if self._connection is not None:
                self._ask(self._connection)
        except OSError:
            self._disconnect()  # pull() finds the next server, and asks it

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

    def _take_answer(self, connection: socket.socket, slots: Slots) -> tuple[Frame, int] | None:
        """None: there was another word first, and we have asked anew."""
        while (frame := wire.receive(connection)).say is Say.OBSOLETE:
            pass  # it crossed with our push, which does not count
        waited_ns = self._clock.now_ns()
        if frame.say is Say.PARAMETERS:
            if frame.position != wire.NO_SHARE:
                wire.receive_payload(connection, frame, tcp_wire.bytes_of(slots.parameters))
            self._ticket, self._computing = frame.number, (frame.position, frame.time)
            return frame, waited_ns
        if frame.say not in (Say.FENCED, Say.UNKNOWN):
            raise ProtocolError(f"a server said {frame.say.name} to a worker", "look at its log")
        if self._asking in _PUSHES:
            self.on_refused(*self._computing)
        self._join_anew(is_over=frame.say is Say.FENCED)
        self._ask(connection)
        return None

    def _join_anew(self, *, is_over: bool) -> None:
        if is_over:
            self._incarnation = self._route.incarnation(self._incarnation)
        self._asking = Say.JOIN

    def _ask(self, connection: socket.socket) -> None:
        assert self._slots is not None, "open() comes first"
        frame = Frame(self._asking, self._rank, self._incarnation, self._ticket)
        pushes = self._asking in _PUSHES
        wire.send(connection, frame, tcp_wire.bytes_of(self._slots.gradients) if pushes else None)
