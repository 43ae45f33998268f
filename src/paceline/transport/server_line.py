"""How does a worker keep a connection to whoever is primary of a part? It finds the next one, and asks again.

What was asked is remembered until it is answered, so that the next server can be
asked the same; servers know what they have done already, and do nothing twice.
"""

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.clock import Clock, Patience
from paceline.errors import TrainingError
from paceline.transport import elastic_wire as wire

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


class ServerLine(ABC):
    """To the primary of one part, whichever process that is."""

    def __init__(self, route: Route, *, token: bytes, clock: Clock, timeout_s: float) -> None:
        self._route, self._token = route, token
        self._clock, self._timeout_s = clock, timeout_s
        self._connection: socket.socket | None = None
        self._place: Primary | None = None
        self._lock = threading.Lock()  # the route closes what we wait for
        self._patience: Patience | None = None  # while no server listens to us
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
        connection = wire.connect(place.host, place.port, token=self._token, side=SIDE, timeout_s=CONNECT_S)
        connection.settimeout(None)  # a step of others may take long; the route tells us of the dead
        with self._lock:
            self._connection, self._place = connection, place
        self._patience = None
        self._leave_the_former()  # it may have changed before we said where we are
        self._ask(connection)
        return connection

    def _leave_the_former(self) -> None:
        """A frozen server never closes its connection; so we do, when another one took its place."""
        with self._lock:
            if self._connection is None or self._place is None or self._route.is_primary(self._place):
                return
            wire.shut(self._connection)

    def _lose(self, error: Exception) -> None:
        """The server is gone, or does not listen; soon we are told of the next one, and ask that."""
        self._disconnect()
        if self._patience is None:
            self._patience = Patience(self._timeout_s, now_s=lambda: self._clock.now_ns() / 1e9)
        elif not self._patience.next_s():
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
