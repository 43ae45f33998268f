"""TCP parameter store: unauthenticated connections, and lost workers and servers.

The server always is a process of its own, so that what it survives is real.
"""

import json
import os
import resource
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.processes.forks import Forked, fork
from tests.fixtures.runs.ledger_server import LedgerServer, RevokingServer, work, work_until_revoked
from tests.fixtures.servers.certificates import tls_contexts
from tests.fixtures.waiting import NEVER_S, until
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.core.errors import NotReadyError, PeerLostError
from paceline.core.ids import Clock, Rank
from paceline.transport import elastic_wire
from paceline.transport import tcp_wire as wire
from paceline.transport.elastic_store import ElasticHost, WorkerRequest
from paceline.transport.elastic_wire import MessageKind
from paceline.transport.handshake import Dialer, Member
from paceline.transport.ports import Request
from paceline.transport.tcp_store import Address, TcpStore, TcpStoreHost
from paceline.transport.tcp_wire import Frame

NUMEL, SHARES, TOKEN = 48, 10, b"the run's token"
MEGABYTE = 1 << 10  # ru_maxrss counts kilobytes


@dataclass(frozen=True, slots=True)
class Server:
    address: Address
    process: Forked

    def worker(self, token: bytes = TOKEN, tls: ssl.SSLContext | None = None) -> TcpStore:
        return TcpStore(self.address, Rank(0), token=token, clock=SystemClock(), timeout_s=20.0, tls=tls)

    def stranger(self) -> socket.socket:
        return socket.create_connection((self.address.host, self.address.port), 20.0)

    def said(self) -> Any:  # Any: JSON
        result = self.process.end()
        assert result.error == ""
        return json.loads(result.value)


@contextmanager
def serving(
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    brain: type[LedgerServer] = LedgerServer,
    has_few_files: bool = False,
) -> Iterator[Server]:
    """One server for one worker, in a process of its own."""
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]

        def body() -> bytes:
            server = brain(SHARES, NUMEL)
            if has_few_files:
                allow_few_files()
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            store = TcpStoreHost(
                listener,
                num_workers=1,
                numel=NUMEL,
                dtype=torch.float64,
                token=TOKEN,
                timeout_s=20.0,
                tls=tls,
            )
            try:
                store.serve(server)
                outcome = "served"
            except PeerLostError as error:
                outcome = error.what
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
            return json.dumps({"outcome": outcome, "sum": server.total.sum().item(), "grown": grown}).encode()

        process = fork(body)
    try:
        yield Server(Address("127.0.0.1", port), process)
    finally:
        process.discard()


def serves_its_worker(server: Server, tls: ssl.SSLContext | None = None) -> None:
    assert work(server.worker(tls=tls), NUMEL).startswith(f"{SHARES} pushes")
    text = server.said()
    assert text["outcome"] == "served"
    assert text["sum"] == SHARES


def greeted(server: Server) -> socket.socket:
    """A connection that has proven the token and said hello as the worker would."""
    connection = server.stranger()
    wire.prove_token(connection, TOKEN, side=b"worker", other=b"server")
    wire.send(connection, Frame(wire.HELLO, 0, NUMEL * 8, 0))
    return connection


def test_a_wrong_token_is_refused_and_the_server_serves_on() -> None:
    with serving() as server:
        with pytest.raises(PeerLostError):
            server.worker(token=b"guessed").open(NUMEL, torch.float64)
        serves_its_worker(server)


def test_a_worker_refuses_a_server_that_does_not_hold_the_token(wording: Wording) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())

        def impostor() -> bytes:
            connection, _ = listener.accept()
            with connection, pytest.raises(PeerLostError):
                wire.prove_token(connection, b"guessed", side=b"server", other=b"worker")
            return b"turned away"

        process = fork(impostor)
        store = TcpStore(address, Rank(0), token=TOKEN, clock=SystemClock(), timeout_s=20.0)
        with wording.raises(PeerLostError):
            store.open(NUMEL, torch.float64)
    assert process.end().value == b"turned away"


FEW_FILES = 40  # besides those that are open


def allow_few_files() -> None:
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    most = [number for number in range(len(taken) + FEW_FILES + 1) if number not in taken][FEW_FILES]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def knock(port: int, count: int) -> list[socket.socket]:
    """Strangers who say nothing; some of them wait in the kernel's queue."""
    results = []
    for _ in range(count):
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
        results.append(stranger)
    return results


def test_a_flood_of_strangers_closes_no_listener_and_keeps_no_worker_out() -> None:
    with serving(has_few_files=True) as server:
        strangers = knock(server.address.port, 3 * FEW_FILES)
        serves_its_worker(server)
        for stranger in strangers:
            stranger.close()


def test_a_flood_of_strangers_does_not_end_an_elastic_server() -> None:
    reported, tell = os.pipe()

    def body() -> bytes:
        allow_few_files()
        host = ElasticHost(
            "127.0.0.1", run="r", name="server-0-a", token=TOKEN, numel=NUMEL, dtype=torch.float64
        )
        os.write(tell, f"{host.listener.port}\n".encode())
        requested = host.events.get(timeout=NEVER_S)
        assert isinstance(requested, WorkerRequest)
        return requested.frame.kind.name.encode()

    process = fork(body)
    try:
        port = int(os.read(reported, 16))
        strangers = knock(port, 3 * FEW_FILES)
        server = Member("server-0-a", 1, "127.0.0.1", port)
        dialer = Dialer(run="r", token=TOKEN, trusting=None)

        def is_let_in() -> bool:
            try:
                connection = elastic_wire.connect(dialer, "worker-0", 1, server, lambda _: True)
            except (OSError, PeerLostError):
                return False  # a newer stranger came first
            with connection:
                elastic_wire.send(connection, elastic_wire.Frame(MessageKind.LEAVE))
            return True

        until(is_let_in, "a worker is let in")
        assert process.end().value == b"LEAVE"
        for stranger in strangers:
            stranger.close()
    finally:
        process.discard()
        os.close(reported)
        os.close(tell)


def test_a_proof_that_is_only_reflected_is_refused() -> None:
    with serving() as server:
        with server.stranger() as connection:
            for size in (wire.NONCE_BYTES, 32):  # send back whatever the server says
                received = bytearray(size)
                wire.receive_into(connection, memoryview(received))
                connection.sendall(received)
            assert connection.recv(1) == b""  # it hung up
        serves_its_worker(server)


@pytest.mark.parametrize("noise", [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40])
def test_garbage_is_refused_and_the_server_serves_on(noise: bytes) -> None:
    with serving() as server:
        with server.stranger() as connection:
            connection.sendall(noise)
        serves_its_worker(server)


def test_a_silent_stranger_keeps_no_worker_waiting() -> None:
    with serving() as server, server.stranger():
        serves_its_worker(server)


@pytest.mark.parametrize(
    "hello",
    [
        Frame(wire.HELLO, 0, 2**62, 0),  # another model
        Frame(wire.HELLO, 7, NUMEL * 8, 0),  # no worker of this run
        Frame(Request.PUSH, 0, NUMEL * 8, NUMEL * 8),  # no greeting
    ],
)
def test_a_greeting_that_does_not_fit_is_refused_and_the_server_serves_on(hello: Frame) -> None:
    with serving() as server:
        with server.stranger() as connection:
            wire.prove_token(connection, TOKEN, side=b"worker", other=b"server")
            wire.send(connection, hello)
            assert connection.recv(1) == b""
        serves_its_worker(server)


@pytest.mark.parametrize("announced", [2**60, 2**63 + 1, 0, NUMEL * 8 - 1, NUMEL * 8 + 1])
def test_a_payload_of_another_length_is_refused_before_room_is_made_for_it(announced: int) -> None:
    with serving() as server, greeted(server) as connection:
        wire.send(connection, Frame(Request.JOIN, 0, 0, 0))
        wire.receive(connection)
        wire.send(connection, Frame(Request.PUSH, 0, 0, announced))
        text = server.said()
    assert f" {announced} bytes " in text["outcome"]
    assert str(NUMEL * 8) in text["outcome"]
    assert text["grown"] < 100 * MEGABYTE


def test_a_frame_of_another_protocol_is_refused(wording: Wording) -> None:
    with serving() as server, greeted(server) as connection:
        connection.sendall(struct.pack("!IIQQqQ", 0xDEADBEEF, 2, 0, 0, 0, 0))
        wording(server.said()["outcome"])


def test_a_worker_refuses_parameters_of_another_length(wording: Wording) -> None:
    def answer(connection: socket.socket) -> None:
        wire.send(connection, Frame(wire.PARAMETERS, 0, 1, 2**60, position=0))

    with wording.raises(PeerLostError):
        pull_from(answer)


def test_a_server_that_hangs_up_is_a_lost_peer(wording: Wording) -> None:
    with wording.raises(PeerLostError):
        pull_from(lambda connection: connection.shutdown(socket.SHUT_RDWR))


def test_a_server_that_falls_silent_is_a_lost_peer_after_the_timeout(wording: Wording) -> None:
    with wording.raises(PeerLostError):
        pull_from(lambda _: None, timeout_s=0.2)


def pull_from(
    answer: Callable[[socket.socket], None],
    timeout_s: float = 20.0,
    then: Callable[[TcpStore], object] = TcpStore.pull,
) -> None:
    """Join a server of one connection that then answers like this, and pull."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())

        def serve() -> bytes:
            connection, _ = listener.accept()
            with connection:
                wire.prove_token(connection, TOKEN, side=b"server", other=b"worker")
                wire.receive(connection)
                wire.receive(connection)
                answer(connection)
                connection.recv(1)  # until the worker hangs up
            return b""

        process = fork(serve)
    store = TcpStore(address, Rank(0), token=TOKEN, clock=SystemClock(), timeout_s=timeout_s)
    try:
        store.open(NUMEL, torch.float64)
        store.join(Clock(0))
        then(store)
    finally:
        store.close()
        process.end()


def test_a_worker_that_is_cut_off_is_a_lost_peer_for_the_server() -> None:
    with serving() as server:
        connection = greeted(server)
        wire.send(connection, Frame(Request.JOIN, 0, 0, 0))
        wire.receive(connection)
        connection.close()
        assert server.said()["outcome"].startswith("worker 0 ")


def test_a_server_that_is_not_there_is_a_lost_peer(wording: Wording) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
    store = TcpStore(address, Rank(0), token=TOKEN, clock=SystemClock(), timeout_s=5.0)
    with wording.raises(PeerLostError):
        store.open(NUMEL, torch.float64)


def test_over_tls_a_worker_is_served_also_beyond_loopback(tmp_path: Path) -> None:
    for_server, for_worker = tls_contexts(tmp_path)
    with serving(host="0.0.0.0", tls=for_server) as server:
        serves_its_worker(server, tls=for_worker)


def test_over_tls_a_sleeping_worker_receives_that_its_step_is_obsolete(tmp_path: Path) -> None:
    for_server, for_worker = tls_contexts(tmp_path)
    with serving(tls=for_server, brain=RevokingServer) as server:
        assert "shares [0, 0, 1," in work_until_revoked(server.worker(tls=for_worker), NUMEL, notices=True)
        assert server.said()["sum"] == SHARES


def test_a_server_that_hangs_up_wakes_a_worker_that_sleeps_on_purpose(wording: Wording) -> None:
    def answer_once(connection: socket.socket) -> None:
        wire.send(
            connection, Frame(wire.PARAMETERS, 0, 1, NUMEL * 8, position=0), memoryview(bytes(NUMEL * 8))
        )
        connection.shutdown(socket.SHUT_RDWR)

    def sleep(store: TcpStore) -> None:
        store.pull()
        store.wait_unless_obsolete(3600.0)

    with wording.raises(PeerLostError):
        pull_from(answer_once, then=sleep)


def test_a_tls_server_turns_plain_text_away(tmp_path: Path) -> None:
    for_server, for_worker = tls_contexts(tmp_path)
    with serving(tls=for_server) as server:
        with pytest.raises(PeerLostError):
            server.worker().open(NUMEL, torch.float64)
        serves_its_worker(server, tls=for_worker)


def test_a_worker_refuses_a_certificate_it_does_not_trust(tmp_path: Path, wording: Wording) -> None:
    for_server, for_worker = tls_contexts(tmp_path)
    with serving(tls=for_server) as server:
        with wording.raises(PeerLostError):
            server.worker(tls=ssl.create_default_context()).open(NUMEL, torch.float64)
        serves_its_worker(server, tls=for_worker)


@pytest.mark.parametrize("host", ["10.1.2.3", "0.0.0.0", "store.example.com"])
def test_a_worker_sends_nothing_in_the_clear_beyond_loopback(host: str, wording: Wording) -> None:
    with wording.raises(NotReadyError) as caught:
        TcpStore(Address(host, 1), Rank(0), token=TOKEN, clock=SystemClock(), timeout_s=1.0)
    assert "certificate" in caught.value.hint


def test_a_server_does_not_listen_in_the_clear_beyond_loopback(wording: Wording) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener, wording.raises(NotReadyError):
        TcpStoreHost(listener, num_workers=1, numel=NUMEL, dtype=torch.float64, token=TOKEN, timeout_s=1.0)
