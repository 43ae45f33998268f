"""Connections between the members of a generation: one listening socket per worker, and the handshake.

A worker listens from its start to its end, and publishes the address through the coordinator. In a new
generation each member connects to all of lower rank, so there is one connection between any two. The one that
connects says who it is and for whom and which generation it means (`Claim`). Then both prove that they hold
the run's token, with a key that is derived from it and from the whole claim: a proof for another run,
generation, worker or incarnation is worthless, and fresh nonces on both sides make a replay fail. A worker
may be accepted before the other side has learned of the generation, and waits there; older generations are
refused.

Beyond loopback the connection is TLS: every worker makes a certificate of its own and publishes it with the
address, and who connects accepts no other. On loopback only the proof protects a connection: who could change
its packets is root on this machine. See docs/decisions/0060-network-world.md.
"""

import hashlib
import hmac
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from paceline.core.clock import ActiveTimeout
from paceline.core.errors import PeerLostError, ProtocolError, TrainingError
from paceline.transport import tcp_wire
from paceline.transport.tcp_store import refuse_plaintext_beyond_loopback

MAGIC = 0x50434C48  # "PCLH"
_CLAIM = struct.Struct("!IQQQHHH")  # magic, generation, both incarnations, bytes of run and of both names
MAX_NAME_BYTES = 256
_CONNECTS = b"connects"
_ACCEPTS = b"accepts"
_ADMITTED = b"\x01"
_REFUSED = b"\x00"
CONNECT_TIMEOUT_S = 5.0  # for a member to accept and answer; `wake` ends it earlier
RETRY_S = 0.01
POLL_S = 0.02  # how often a wait checks whether the generation is over


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as the coordinator knows it."""

    name: str
    incarnation: int
    host: str
    port: int
    certificate: str = ""  # of its listening socket, PEM; empty: no TLS


@dataclass(frozen=True, slots=True)
class Claim:
    """Who connects to whom, for which generation."""

    run: str
    generation: int
    dialer: str
    dialer_incarnation: int
    acceptor: str
    acceptor_incarnation: int

    def to_bytes(self) -> bytes:
        run, dialer, acceptor = (text.encode() for text in (self.run, self.dialer, self.acceptor))
        head = _CLAIM.pack(
            MAGIC,
            self.generation,
            self.dialer_incarnation,
            self.acceptor_incarnation,
            len(run),
            len(dialer),
            len(acceptor),
        )
        return head + run + dialer + acceptor

    def key(self, token: bytes) -> bytes:
        return hmac.new(token, b"generation" + self.to_bytes(), hashlib.sha256).digest()


@dataclass(frozen=True, slots=True)
class MeshTls:
    """What connections beyond loopback need."""

    server: ssl.SSLContext
    certificate: str  # PEM, by which the others know this worker
    trusting: Callable[[str], ssl.SSLContext]  # a context that accepts this certificate alone


class MeshListener:
    """A worker's listening socket, and the members of a generation that have connected to it."""

    def __init__(self, host: str, *, run: str, name: str, token: bytes, tls: MeshTls | None = None) -> None:
        refuse_plaintext_beyond_loopback(host, None if tls is None else tls.server)
        self._run = run
        self._name = name
        self._token = token
        self._tls = tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._unauthenticated = tcp_wire.UnauthenticatedConnections()
        self._changed = threading.Condition()
        self._arrived: dict[tuple[int, str], tuple[Claim, socket.socket]] = {}  # by generation and dialer
        self._first_open = 0  # connections for earlier generations are refused
        self._is_closed = False
        self._dialing: socket.socket | None = None
        threading.Thread(target=self._accept, name="mesh", daemon=True).start()

    @property
    def certificate(self) -> str:
        return "" if self._tls is None else self._tls.certificate

    def wake(self) -> None:
        """End the present wait in `connect`, if its generation is over. Called from any thread."""
        with self._changed:
            if self._dialing is not None:
                _shut(self._dialing)
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
                    raise PeerLostError(f"generation {generation} ended before it started", _NEXT)
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
        with self._changed:
            self._is_closed = True
            _shut(self._listener)
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
                if claim == _claim(self._run, generation, known[other], own):
                    taken[other] = connection
                else:
                    connection.close()
        return taken

    def _has_arrived(self, generation: int) -> bool:
        return any(key[0] == generation for key in self._arrived)

    def _dial(
        self, generation: int, own: Member, other: Member, *, is_over: Callable[[], bool]
    ) -> socket.socket:
        connection = socket.socket(socket.AF_INET6 if ":" in other.host else socket.AF_INET)
        try:
            with self._changed:
                self._dialing = connection
            if is_over():  # from here on `wake` shuts the socket
                raise PeerLostError(f"generation {generation} ended before it started", _NEXT)
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.connect((other.host, other.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self._secure(connection, other)
            with self._changed:
                self._dialing = secured
            if is_over():  # `wake` may have come for the plain socket
                raise PeerLostError(f"generation {generation} ended before it started", _NEXT)
            if isinstance(secured, ssl.SSLSocket):
                secured.do_handshake()
            claim = _claim(self._run, generation, own, other)
            secured.sendall(claim.to_bytes())
            key = claim.key(self._token)
            tcp_wire.prove_token(secured, key, side=_CONNECTS, other=_ACCEPTS)
            answer = bytearray(1)
            tcp_wire.receive_into(secured, memoryview(answer))
            if bytes(answer) != _ADMITTED:
                raise PeerLostError(f"{other.name} is not in generation {generation} any more", _NEXT)
            return secured
        except BaseException:
            (self._dialing or connection).close()
            raise
        finally:
            with self._changed:
                self._dialing = None

    def _secure(self, connection: socket.socket, other: Member) -> socket.socket:
        if self._tls is None:
            refuse_plaintext_beyond_loopback(other.host, None)
            return connection
        if not other.certificate:
            raise ProtocolError(
                f"{other.name} has published no certificate", "start all workers with the same options"
            )
        return self._tls.trusting(other.certificate).wrap_socket(
            connection, server_hostname=other.host, do_handshake_on_connect=False
        )

    # Threads: one accepts, and one for each connection until it is authenticated.

    def _accept(self) -> None:
        with self._listener:
            while True:
                connection = tcp_wire.accept(self._listener, self._unauthenticated, lambda: self._is_closed)
                if connection is None:
                    return
                threading.Thread(target=partial(self._admit, connection), daemon=True).start()

    def _admit(self, plain: socket.socket) -> None:
        connection = plain
        try:
            connection.settimeout(tcp_wire.HANDSHAKE_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                secured = self._tls.server.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                # The limits on time and number go on for what the plain socket has become.
                self._unauthenticated.remove(plain)
                self._unauthenticated.add(secured)
                connection = secured
                secured.do_handshake()
            claim = self._receive_claim(connection)
            tcp_wire.prove_token(connection, claim.key(self._token), side=_ACCEPTS, other=_CONNECTS)
            self._unauthenticated.remove(connection)
            self._keep(claim, connection)
        except (OSError, PeerLostError) as error:
            print(f"refused a connection: {error}", flush=True)
            self._unauthenticated.remove(plain)
            self._unauthenticated.remove(connection)
            connection.close()

    def _receive_claim(self, connection: socket.socket) -> Claim:
        head = bytearray(_CLAIM.size)
        tcp_wire.receive_into(connection, memoryview(head))
        magic, generation, dialer_incarnation, acceptor_incarnation, *sizes = _CLAIM.unpack(head)
        if magic != MAGIC or max(sizes) > MAX_NAME_BYTES:
            raise ProtocolError(
                f"a connection began with {magic:#x} and names of {sizes} bytes",
                "all workers must run the same version of paceline",
            )
        names = bytearray(sum(sizes))
        tcp_wire.receive_into(connection, memoryview(names))
        run = names[: sizes[0]]
        dialer = names[sizes[0] : sizes[0] + sizes[1]]
        acceptor = names[sizes[0] + sizes[1] :]
        try:
            claim = Claim(
                run.decode(),
                generation,
                dialer.decode(),
                dialer_incarnation,
                acceptor.decode(),
                acceptor_incarnation,
            )
        except UnicodeDecodeError as error:
            raise ProtocolError("a name is not UTF-8", "look for who connects to this port") from error
        if claim.run != self._run or claim.acceptor != self._name:
            raise ProtocolError(
                f"a connection is for {claim.acceptor} of {claim.run}", "it is not for this worker"
            )
        return claim

    def _keep(self, claim: Claim, connection: socket.socket) -> None:
        """Let the authenticated member wait until this worker enters its generation."""
        with self._changed:
            if self._is_closed or claim.generation < self._first_open:
                connection.sendall(_REFUSED)
                connection.close()
                return
            former = self._arrived.pop((claim.generation, claim.dialer), None)
            if former is not None:
                former[1].close()
            connection.sendall(_ADMITTED)
            self._arrived[claim.generation, claim.dialer] = (claim, connection)
            self._changed.notify_all()


_NEXT = "the run continues in the next generation"


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


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
