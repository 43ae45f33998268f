"""Connections between participants of a run: who connects to whom, proof of the secret, TLS with pinning.

A participant listens from its start to its end (`Listener`), and publishes its address through the
coordinator. The one that connects (`Dialer`) says who it is, for whom and for which generation (`Claim`);
connections of parameter servers belong to no generation. Then both prove that they hold the run's secret,
with a key that is derived from it and from the whole claim: a proof for another run, generation, participant
or incarnation is worthless, and fresh nonces on both sides make a replay fail.

Beyond loopback the connection is TLS: every participant that listens makes a certificate of its own and
publishes it with the address, and who connects accepts no other. On loopback only the proof protects a
connection: who could change its packets is root on this machine. See docs/decisions/0060-network-world.md.
"""

import hashlib
import hmac
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from paceline.core.errors import PeerLostError, ProtocolError
from paceline.transport import tcp_wire
from paceline.transport.tcp_store import refuse_plaintext_beyond_loopback

MAGIC = 0x50434C48  # "PCLH"
_CLAIM = struct.Struct("!IQQQHHH")  # magic, generation, both incarnations, bytes of run and of both names
MAX_NAME_BYTES = 256
NO_GENERATION = 0  # of connections to parameter servers; the first generation is 1
CONNECT_TIMEOUT_S = 5.0  # for a participant to accept and answer; `wake` ends it earlier
_CONNECTS = b"connects"
_ACCEPTS = b"accepts"
_ADMITTED = b"\x01"
_REFUSED = b"\x00"
Trusting = Callable[[str], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class Member:
    """A participant that listens, as the coordinator knows it."""

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
class PeerTls:
    """What connections beyond loopback need."""

    server: ssl.SSLContext
    certificate: str  # PEM, by which the others know this participant
    trusting: Trusting  # as of a `Dialer`


class Dialer:
    """Connects to other participants of the run, one after the other."""

    def __init__(self, *, run: str, token: bytes, trusting: Trusting | None) -> None:
        """`trusting`: makes a TLS context that accepts this certificate alone; None: all is on loopback."""
        self.run = run
        self._token = token
        self._trusting = trusting
        self._lock = threading.Lock()
        self._dialing: socket.socket | None = None

    def wake(self) -> None:
        """End the present attempt, if its purpose is over. Called from any thread."""
        with self._lock:
            if self._dialing is not None:
                tcp_wire.shut(self._dialing)

    def dial(self, claim: Claim, other: Member, *, is_over: Callable[[], bool], ended: str) -> socket.socket:
        """A connection on which `other` has admitted this participant.

        OSError when it cannot be reached, PeerLostError when it refuses, or with `ended` when `is_over`.
        """
        current = socket.socket(socket.AF_INET6 if ":" in other.host else socket.AF_INET)
        try:
            self._begin(current, is_over, ended)
            current.settimeout(CONNECT_TIMEOUT_S)
            current.connect((other.host, other.port))
            current.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            current = self._secure(current, other)
            self._begin(current, is_over, ended)  # `wake` may have come for the plain socket
            if isinstance(current, ssl.SSLSocket):
                current.do_handshake()
            current.sendall(claim.to_bytes())
            tcp_wire.prove_token(current, claim.key(self._token), side=_CONNECTS, other=_ACCEPTS)
            answer = bytearray(1)
            tcp_wire.receive_into(current, memoryview(answer))
            if bytes(answer) != _ADMITTED:
                raise PeerLostError(f"{other.name} does not admit {claim.dialer} any more", ended)
            return current
        except BaseException:
            current.close()
            raise
        finally:
            with self._lock:
                self._dialing = None

    def _begin(self, connection: socket.socket, is_over: Callable[[], bool], ended: str) -> None:
        """From here on `wake` shuts this socket."""
        with self._lock:
            self._dialing = connection
        if is_over():
            raise PeerLostError(ended, "the run continues without this connection")

    def _secure(self, connection: socket.socket, other: Member) -> socket.socket:
        if self._trusting is None:
            refuse_plaintext_beyond_loopback(other.host, None)
            return connection
        if not other.certificate:
            raise ProtocolError(
                f"{other.name} has published no certificate", "start all participants with the same options"
            )
        return self._trusting(other.certificate).wrap_socket(
            connection, server_hostname=other.host, do_handshake_on_connect=False
        )


class Listener:
    """A participant's listening socket.

    `admitted` is called with each connection whose other side has proven the secret, in a thread of its own;
    it calls `admit` or `refuse`. Of the connections without a proof the oldest end when there are too many.
    """

    def __init__(
        self,
        host: str,
        *,
        run: str,
        name: str,
        token: bytes,
        tls: PeerTls | None,
        admitted: Callable[[Claim, socket.socket], None],
    ) -> None:
        refuse_plaintext_beyond_loopback(host, None if tls is None else tls.server)
        self._run = run
        self._name = name
        self._token = token
        self._tls = tls
        self._admitted = admitted
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._unauthenticated = tcp_wire.UnauthenticatedConnections()
        self._refusals = tcp_wire.Refusals()
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._start(self._accept)

    @property
    def certificate(self) -> str:
        return "" if self._tls is None else self._tls.certificate

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Accept no more. Connections that were admitted are their owner's."""
        self._is_closed = True
        tcp_wire.shut(self._listener)
        self._unauthenticated.shut_all()

    def join(self) -> None:
        """Wait until every thread has ended; call close() first."""
        while True:
            with self._lock:
                living = [thread for thread in self._threads if thread.is_alive()]
            if not living:
                return
            for thread in living:
                thread.join()

    def _start(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, name="connections", daemon=True)
        with self._lock:
            self._threads = [other for other in self._threads if other.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _accept(self) -> None:
        with self._listener:
            while True:
                connection = tcp_wire.accept(self._listener, self._unauthenticated, lambda: self._is_closed)
                if connection is None:
                    return
                self._start(partial(self._serve, connection))

    def _serve(self, plain: socket.socket) -> None:
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
        except (OSError, PeerLostError) as error:
            self._refusals.print(error)
            connection.close()
            return
        finally:
            self._unauthenticated.remove(plain)
            self._unauthenticated.remove(connection)
        self._admitted(claim, connection)

    def _receive_claim(self, connection: socket.socket) -> Claim:
        head = bytearray(_CLAIM.size)
        tcp_wire.receive_into(connection, memoryview(head))
        magic, generation, dialer_incarnation, acceptor_incarnation, *sizes = _CLAIM.unpack(head)
        if magic != MAGIC or max(sizes) > MAX_NAME_BYTES:
            raise ProtocolError(
                f"a connection began with {magic:#x} and names of {sizes} bytes",
                "all participants must run the same version of paceline",
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
                f"a connection is for {claim.acceptor} of {claim.run}", "it is not for this participant"
            )
        return claim


def admit(connection: socket.socket) -> None:
    """Tell the other side that it was admitted."""
    connection.sendall(_ADMITTED)


def refuse(connection: socket.socket) -> None:
    """Tell the other side that it is not admitted, and hang up."""
    with suppress(OSError):  # it may have hung up before
        connection.sendall(_REFUSED)
    connection.close()
