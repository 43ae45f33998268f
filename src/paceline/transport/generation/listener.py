"""Connections between the members of a generation, made by handshake.py.

In a new generation each member connects to all of lower rank, so there is one connection between any two. A
worker may be accepted before the other side has learned of the generation, and waits there; older generations
are refused.
"""

import socket
import threading
from collections.abc import Callable, Sequence

from paceline.core.clock import ActiveTimeout
from paceline.core.errors import PeerLostError, TrainingError
from paceline.transport.handshake import Claim, Dialer, Listener, Member, PeerTls, admit, refuse

RETRY_S = 0.01
POLL_S = 0.02  # how often a wait checks whether the generation is over


class MeshListener:
    """A worker's listening socket, and the members of a generation that have connected to it."""

    def __init__(self, host: str, *, run: str, name: str, token: bytes, tls: PeerTls | None = None) -> None:
        self._changed = threading.Condition()
        self._arrived: dict[tuple[int, str], tuple[Claim, socket.socket]] = {}  # by generation and dialer
        self._first_open = 0  # connections for earlier generations are refused
        self._is_closed = False
        self._dialer = Dialer(run=run, token=token, trusting=None if tls is None else tls.trusting)
        self._listener = Listener(host, run=run, name=name, token=token, tls=tls, admitted=self._keep)
        self.host = host
        self.port = self._listener.port

    @property
    def certificate(self) -> str:
        return self._listener.certificate

    def wake(self) -> None:
        """End the present wait in `connect`, if its generation is over. Called from any thread."""
        self._dialer.wake()
        with self._changed:
            self._changed.notify_all()

    def connect(
        self,
        generation: int,
        rank: int,
        members: Sequence[Member],
        *,
        timeout_s: float,
        is_over: Callable[[], bool],
    ) -> dict[int, socket.socket]:
        """A connection to every other one of the members, by rank.

        PeerLostError when the generation ends before, TrainingError when a member cannot be reached in time.
        """
        self._open_from(generation)
        timeout = ActiveTimeout(timeout_s)
        connections: dict[int, socket.socket] = {}
        failure = "it did not connect"
        try:
            while True:
                undialed = [other for other in range(rank) if other not in connections]
                for other in undialed:
                    try:
                        connections[other] = self._dial(
                            generation, members[rank], members[other], is_over=is_over
                        )
                    except (OSError, PeerLostError) as error:
                        failure = error.what if isinstance(error, PeerLostError) else str(error)
                connections |= self._take(generation, rank, members)
                if len(connections) == len(members) - 1:
                    return connections
                if is_over():
                    raise PeerLostError(_over(generation), _NEXT)
                if not timeout.next_s():
                    raise _unreachable(members, {rank, *connections}, members[rank].name, failure, timeout_s)
                with self._changed:
                    if not self._has_arrived(generation):
                        self._changed.wait(RETRY_S if undialed else POLL_S)
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise

    def close(self) -> None:
        self._listener.close()
        with self._changed:
            self._is_closed = True
            for _, connection in self._arrived.values():
                connection.close()
            self._arrived.clear()

    def _open_from(self, generation: int) -> None:
        """Refuse earlier generations from now on, and hang up on those of them that wait."""
        with self._changed:
            self._first_open = max(self._first_open, generation)
            for key in [key for key in self._arrived if key[0] < generation]:
                self._arrived.pop(key)[1].close()

    def _take(self, generation: int, rank: int, known: Sequence[Member]) -> dict[int, socket.socket]:
        """The members that have connected. Another incarnation than the coordinator knows is refused."""
        taken = {}
        own = known[rank]
        with self._changed:
            for other in range(rank + 1, len(known)):
                claim, connection = self._arrived.pop((generation, known[other].name), (None, None))
                if claim is None or connection is None:
                    continue
                if claim == _claim(self._dialer.run, generation, known[other], own):
                    taken[other] = connection
                else:
                    connection.close()
        return taken

    def _has_arrived(self, generation: int) -> bool:
        return any(key[0] == generation for key in self._arrived)

    def _dial(
        self, generation: int, own: Member, other: Member, *, is_over: Callable[[], bool]
    ) -> socket.socket:
        claim = _claim(self._dialer.run, generation, own, other)
        return self._dialer.dial(claim, other, is_over=is_over, ended=_over(generation))

    def _keep(self, claim: Claim, connection: socket.socket) -> None:
        """Let the authenticated member wait until this worker enters its generation."""
        with self._changed:
            if self._is_closed or claim.generation < self._first_open:
                refuse(connection)
                return
            former = self._arrived.pop((claim.generation, claim.dialer), None)
            if former is not None:
                former[1].close()
            try:
                admit(connection)
            except OSError as error:
                print(f"refused a connection: {error}", flush=True)
                connection.close()
                return
            self._arrived[claim.generation, claim.dialer] = (claim, connection)
            self._changed.notify_all()


_NEXT = "the run continues in the next generation"


def _over(generation: int) -> str:
    return f"generation {generation} ended before it started"


def _claim(run: str, generation: int, dialer: Member, acceptor: Member) -> Claim:
    return Claim(run, generation, dialer.name, dialer.incarnation, acceptor.name, acceptor.incarnation)


def _unreachable(
    known: Sequence[Member], reached: set[int], own: str, failure: str, timeout_s: float
) -> TrainingError:
    missing = [f"{m.name} at {m.host}:{m.port}" for rank, m in enumerate(known) if rank not in reached]
    return TrainingError(
        f"{own} has no connection to {', '.join(missing)} after {timeout_s:g} s: {failure}",
        "workers must reach each other's addresses on any port: check the hosts' firewalls",
    )
