"""Parameter store over TCP, for workers on several hosts: `TcpStore` and `TcpStoreHost`.

The server has one connection and one thread per worker. The thread receives a push
straight into the worker's slot, queues the request for the single server loop, and
sends the answer when the loop has filled the slot. So a slow network never blocks
the server, and updates are still applied one at a time. While a worker computes,
its thread polls both the connection and a socket pair, by which the loop wakes it to
send OBSOLETE.
"""

import math
import queue
import select
import socket
import ssl
import threading
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from paceline.core.clock import ActiveTimeout, Clock
from paceline.core.errors import NotReadyError, PeerLostError, ProtocolError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank, Version
from paceline.transport import tcp_wire as wire
from paceline.transport.ports import (
    Answer,
    AtEnd,
    Obsolete,
    PullResult,
    Reply,
    Request,
    Slots,
    StoreHandler,
    Traffic,
    dispatch,
)
from paceline.transport.tcp_wire import Frame

HANDSHAKE_TIMEOUT_S = 20.0  # timeout for a worker to prove the token, possibly by TLS over a slow network
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


def refuse_plaintext_beyond_loopback(host: str, tls: ssl.SSLContext | None) -> None:
    if tls is None and host not in LOOPBACK:
        raise NotReadyError(
            f"a parameter store on {host} needs TLS: gradients and parameters would be sent unencrypted",
            "give it a certificate, or bind it to 127.0.0.1",
        )


class TcpStore:
    """A worker's end."""

    def __init__(
        self,
        address: Address,
        rank: Rank,
        *,
        token: bytes,
        clock: Clock,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        refuse_plaintext_beyond_loopback(address.host, tls)
        self._address = address
        self._rank = rank
        self._token = token
        self._clock = clock
        self._timeout_s = timeout_s
        self._tls = tls
        self._connection: socket.socket | None = None
        self._slots: Slots | None = None
        self._version = self._wanted_from = Version(0)

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        self._slots = Slots.new(numel, dtype, push_bytes)
        try:
            self._connection = self._connect(self._slots.gradients.nbytes)
        except OSError as error:
            raise PeerLostError(
                f"no parameter server responds at {self._address.host}:{self._address.port}: {error}",
                "see server-0.log",
            ) from error
        return self._slots

    def _connect(self, vector_bytes: int) -> socket.socket:
        connection = socket.create_connection((self._address.host, self._address.port), self._timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=self._address.host)
            wire.prove_token(connection, self._token, side=b"worker", other=b"server")
            wire.send(connection, Frame(wire.HELLO, self._rank, vector_bytes, 0))
        except BaseException:
            connection.close()
            raise
        return connection

    def join(self, clock: StepClock) -> None:
        self._send(Request.JOIN, number=clock)

    def pull(self) -> PullResult:
        connection, slots = self._opened()
        started_ns = self._clock.now_ns()
        try:
            frame = self._next_frame(connection, self._timeout_s)
            while frame.kind == wire.OBSOLETE:  # it crossed with the push, which was discarded
                frame = self._next_frame(connection, self._timeout_s)
            if frame.kind == wire.AT_END:
                frame = self._next_frame(connection, math.inf)
            waited_ns = self._clock.now_ns() - started_ns
            self._version = Version(frame.number)
            if frame.position == wire.NOTHING_LEFT and not frame.payload_bytes:
                return PullResult(Version(frame.number), None, Traffic(0, 0, waited_ns))
            place = wire.bytes_of(slots.parameters)
            wire.expect_payload(frame, place)
            wire.receive_into(connection, place)
        except OSError as error:
            raise self._lost(error) from error
        position = None if frame.position == wire.NOTHING_LEFT else frame.position
        return PullResult(self._version, position, Traffic(0, slots.parameters.nbytes, waited_ns))

    def _next_frame(self, connection: socket.socket, timeout_s: float) -> Frame:
        """The next frame; TimeoutError when none begins to arrive within the timeout."""
        timeout = ActiveTimeout(timeout_s)
        while wait_s := timeout.next_s():
            if (frame := wire.receive_within(connection, wait_s)) is not None:
                return frame
        raise TimeoutError(f"timed out after {timeout_s:g} s")

    def push(self, *, wants_stop: bool) -> Traffic:
        _, slots = self._opened()
        request = Request.PUSH_AND_STOP if wants_stop else Request.PUSH
        self._send(request, payload=wire.bytes_of(slots.gradients))
        return Traffic(slots.gradients.nbytes, 0, 0)

    def is_obsolete(self) -> bool:
        self._listen(0.0)
        return self._wanted_from > self._version

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        now_ns = self._clock.now_ns
        end_ns = now_ns() + round(duration_s * 1e9)
        while not self.is_obsolete() and (left_ns := end_ns - now_ns()) > 0:
            self._listen(left_ns / 1e9)
        return self.is_obsolete()

    def again(self) -> None:
        self._send(Request.AGAIN)

    def leave(self) -> None:
        self._send(Request.LEAVE)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> tuple[socket.socket, Slots]:
        assert self._connection is not None, "open() comes first"
        assert self._slots is not None, "open() comes first"
        return self._connection, self._slots

    def _listen(self, duration_s: float) -> None:
        """Wait at most this long for OBSOLETE, the only message that arrives during a step."""
        connection, _ = self._opened()
        try:
            frame = wire.receive_within(connection, duration_s)
        except OSError as error:
            raise self._lost(error) from error
        if frame is not None:
            if frame.kind != wire.OBSOLETE:
                raise ProtocolError(f"an unexpected frame of kind {frame.kind} arrived", "see server-0.log")
            self._wanted_from = Version(frame.number)

    def _lost(self, error: OSError) -> PeerLostError:
        return PeerLostError(
            f"the parameter server at {self._address.host}:{self._address.port} was lost: {error}",
            "see server-0.log; raise --timeout if a step may take this long",
        )

    def _send(self, request: Request, *, number: int = 0, payload: memoryview | None = None) -> None:
        connection, _ = self._opened()
        size = 0 if payload is None else len(payload)
        try:
            wire.send(connection, Frame(request, self._rank, number, size), payload)
        except OSError as error:
            raise PeerLostError(f"the parameter server was lost: {error}", "see server-0.log") from error


@dataclass(frozen=True, slots=True)
class _WorkerRequest:
    rank: Rank
    request: Request
    clock: StepClock


class TcpStoreHost:
    """The server's end: listens, then serves until every worker has left."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        num_workers: int,
        numel: int,
        dtype: torch.dtype,
        token: bytes,
        timeout_s: float,
        push_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        refuse_plaintext_beyond_loopback(listener.getsockname()[0], tls)
        self._listener = listener
        self._token = token
        self._tls = tls
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._slots = [Slots.new(numel, dtype, push_bytes) for _ in range(num_workers)]
        self._worker_threads: list[threading.Thread] = []
        self._refusals = wire.Refusals()
        self._unauthenticated = wire.UnauthenticatedConnections(
            handshake_s=min(timeout_s, HANDSHAKE_TIMEOUT_S)
        )
        self._requests: queue.SimpleQueue[_WorkerRequest | PeerLostError] = queue.SimpleQueue()
        self._replies: list[queue.SimpleQueue[Reply]] = [queue.SimpleQueue() for _ in range(num_workers)]
        # One pair per worker: the server's loop writes to the first socket to wake the thread at the second.
        self._wakeups: list[tuple[socket.socket, socket.socket]] = []

    def serve(self, handler: StoreHandler) -> None:
        with ExitStack() as closing:
            self._wakeups = [socket.socketpair() for _ in range(self._num_workers)]
            for end in (end for pair in self._wakeups for end in pair):
                closing.enter_context(end)
            self._serve(handler)

    def _serve(self, handler: StoreHandler) -> None:
        for rank, slots in enumerate(self._slots):
            handler.attach(Rank(rank), slots)
        threading.Thread(target=self._accept_all, daemon=True).start()
        left = 0
        while left < self._num_workers:
            item = self._requests.get()
            if isinstance(item, PeerLostError):
                raise item
            left += item.request is Request.LEAVE
            for reply in dispatch(handler, item.rank, item.request, item.clock):
                self._replies[reply.rank].put(reply)
                if isinstance(reply, Obsolete):  # the worker's thread polls its sockets, not the queue
                    self._wakeups[reply.rank][0].send(b"!")
                elif isinstance(reply, Answer):
                    left += reply.position is None
        for thread in self._worker_threads:  # the last answers must be sent before this process ends
            thread.join()

    def _accept_all(self) -> None:
        """Accept connections until the run ends; one that cannot prove the token is closed."""
        while (connection := wire.accept(self._listener, self._unauthenticated, lambda: False)) is not None:
            threading.Thread(target=self._serve_worker, args=(connection,), daemon=True).start()

    def _serve_worker(self, plain: socket.socket) -> None:
        try:
            connection, rank = self._authenticate(plain)
        except (OSError, PeerLostError) as error:
            self._refusals.print(error)
            self._unauthenticated.remove(plain)
            plain.close()
            return
        self._unauthenticated.remove(plain)
        self._worker_threads.append(threading.current_thread())
        try:
            while self._receive_request(connection, rank) is not Request.LEAVE:
                while not isinstance(reply := self._replies[rank].get(), Answer):
                    if isinstance(reply, AtEnd):
                        wire.send(connection, Frame(wire.AT_END, rank, 0, 0))
                    else:
                        wire.send(connection, Frame(wire.OBSOLETE, rank, reply.version, 0))
                if self._send_answer(reply, connection):
                    break
        except (OSError, PeerLostError) as error:
            self._requests.put(PeerLostError(f"worker {rank} was lost: {error}", "see its log"))
        finally:
            connection.close()

    def _authenticate(self, connection: socket.socket) -> tuple[socket.socket, Rank]:
        connection.settimeout(min(self._timeout_s, HANDSHAKE_TIMEOUT_S))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        wire.prove_token(connection, self._token, side=b"server", other=b"worker")
        hello = wire.receive(connection)
        expected = self._slots[0].gradients.nbytes
        if hello.kind != wire.HELLO or hello.rank >= self._num_workers or hello.number != expected:
            raise ProtocolError(f"an unexpected greeting: {hello}", "check that it is a worker of this run")
        connection.settimeout(None)  # a step may take long; the supervisor detects lost workers
        return connection, Rank(hello.rank)

    def _send_answer(self, answer: Answer, connection: socket.socket) -> bool:
        """Send the answer; whether it was the last one for this worker."""
        rank = answer.rank
        is_last = answer.position is None
        if is_last and not answer.has_parameters:
            wire.send(connection, Frame(wire.PARAMETERS, rank, answer.version, 0))
            return True
        place = wire.bytes_of(self._slots[rank].parameters)
        position = wire.NOTHING_LEFT if answer.position is None else answer.position
        wire.send(connection, Frame(wire.PARAMETERS, rank, answer.version, len(place), position), place)
        return is_last

    def _await_request(self, connection: socket.socket, rank: Rank) -> None:
        """Wait for the worker's next request; send OBSOLETE meanwhile if the loop requests it."""
        wakeup = self._wakeups[rank][1]
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        poller.register(wakeup, select.POLLIN)
        while not wire.is_buffered(connection):
            ready = [fd for fd, _ in poller.poll()]
            if wakeup.fileno() in ready:
                wakeup.recv(1)
                # The queue is empty if the reply was sent before an answer.
                while not self._replies[rank].empty():
                    reply = self._replies[rank].get()
                    assert isinstance(reply, Obsolete), "an answer without a request"
                    wire.send(connection, Frame(wire.OBSOLETE, rank, reply.version, 0))
            if connection.fileno() in ready:
                return

    def _receive_request(self, connection: socket.socket, rank: Rank) -> Request:
        self._await_request(connection, rank)
        frame = wire.receive(connection)
        if frame.kind not in set(Request):
            raise ProtocolError(
                f"a frame of kind {frame.kind} is not a request", "check that it is a worker of this run"
            )
        request = Request(frame.kind)
        place = wire.bytes_of(self._slots[rank].gradients) if request.has_gradient else memoryview(b"")
        wire.expect_payload(frame, place)
        wire.receive_into(connection, place)
        self._requests.put(_WorkerRequest(rank, request, StepClock(frame.number)))
        return request
