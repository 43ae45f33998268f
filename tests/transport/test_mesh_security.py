"""Connections of a generation: strangers, replays, and messages that are not what they should be."""

import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import torch
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import NotReadyError, PeerLostError, ProtocolError, TrainingError
from paceline.transport.generation import mesh as wire
from paceline.transport.generation.listener import MeshListener
from paceline.transport.generation.mesh import Kind, Mesh, Message
from paceline.transport.generation.network_world import NetworkGeneration, enter_network_world
from paceline.transport.handshake import CONNECT_TIMEOUT_S, Claim, Member, PeerTls
from paceline.transport.tcp_wire import (
    HANDSHAKE_TIMEOUT_S,
    MAX_UNAUTHENTICATED,
    REFUSALS_S,
    Refusals,
    shut,
)
from paceline.worker.tls import client_tls_context, server_tls_context

HOST = "127.0.0.1"
SECRET = b"a secret"


@contextmanager
def listeners(*tokens: bytes, runs: tuple[str, ...] = ()) -> Iterator[list[MeshListener]]:
    made = [
        MeshListener(HOST, run=runs[rank] if runs else "a run", name=f"worker-{rank}", token=token)
        for rank, token in enumerate(tokens)
    ]
    try:
        yield made
    finally:
        for listener in made:
            listener.close()


def members_of(made: list[MeshListener], incarnations: tuple[int, ...] = (1, 2, 3)) -> list[Member]:
    return [
        Member(f"worker-{rank}", incarnations[rank], HOST, listener.port)
        for rank, listener in enumerate(made)
    ]


def connect(
    listener: MeshListener, rank: int, members: list[Member], *, generation: int = 1, timeout_s: float = 60.0
) -> dict[int, socket.socket]:
    return listener.connect(generation, rank, members, timeout_s=timeout_s, is_over=lambda: False)


def close(connections: dict[int, socket.socket]) -> None:
    for connection in connections.values():
        connection.close()


def test_a_worker_may_connect_before_the_other_has_learned_of_the_generation() -> None:
    with listeners(SECRET, SECRET) as made:
        members = members_of(made)
        early = connect(made[1], 1, members, generation=5)
        late = connect(made[0], 0, members, generation=5)
        early[0].sendall(b"hello")
        assert late[1].recv(5) == b"hello"
        close(early)
        close(late)


def test_who_does_not_have_the_secret_is_not_admitted() -> None:
    with listeners(SECRET, b"a guess") as made:
        with pytest.raises(TrainingError):
            connect(made[1], 1, members_of(made), timeout_s=0.5)
        assert not made[0]._arrived


def test_a_worker_of_another_run_is_not_admitted() -> None:
    with listeners(SECRET, SECRET, runs=("a run", "another")) as made:
        with pytest.raises(TrainingError):
            connect(made[1], 1, members_of(made), timeout_s=0.5)
        assert not made[0]._arrived


def test_a_listener_does_not_accept_who_poses_as_it() -> None:
    """The worker that connects verifies the other side too."""
    with listeners(b"a guess", SECRET) as made, pytest.raises(TrainingError):
        connect(made[1], 1, members_of(made), timeout_s=0.5)


def test_a_process_that_the_coordinator_has_replaced_is_not_admitted(wording: Wording) -> None:
    with listeners(SECRET, SECRET) as made:
        former = connect(made[1], 1, members_of(made, (1, 2, 3)))
        with wording.raises(TrainingError, hide=[str(made[1].port)]):
            connect(made[0], 0, members_of(made, (1, 4, 3)), timeout_s=0.5)
        assert former[0].recv(1) == b""
        close(former)


def test_an_earlier_generation_is_refused() -> None:
    with listeners(SECRET, SECRET) as made:
        members = members_of(made)
        with ThreadPoolExecutor(2) as threads:
            both = [threads.submit(connect, made[rank], rank, members, generation=6) for rank in (0, 1)]
        with pytest.raises(TrainingError):
            connect(made[1], 1, members, generation=5, timeout_s=0.5)
        for connected in both:
            close(connected.result())


def test_a_recorded_handshake_is_worthless() -> None:
    """Everything that the worker sent once is sent again: to the same listener, in the same generation."""
    with listeners(SECRET, SECRET) as made, _recording(made[0].port) as (port, recorded):
        members = members_of(made)
        through = [Member("worker-0", 1, HOST, port), members[1]]
        close(connect(made[1], 1, through))
        until(lambda: len(made[0]._arrived) == 1, "the worker was admitted")
        for _, admitted in made[0]._arrived.values():
            admitted.close()
        made[0]._arrived.clear()
        with socket.create_connection((HOST, made[0].port)) as replay:
            replay.sendall(bytes(recorded))
            answer = b""
            while part := replay.recv(1000):
                answer += part
        assert len(answer) == 32 + 32  # its nonce and its proof; then it hung up
        assert not made[0]._arrived


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_tensors_are_readable_on_the_way_only_without_tls(is_encrypted: bool) -> None:
    tls = encrypted() if is_encrypted else None
    made = [MeshListener(HOST, run="r", name=f"worker-{n}", token=SECRET, tls=tls) for n in (0, 1)]
    members = [Member(f"worker-{n}", n, HOST, made[n].port, made[n].certificate) for n in (0, 1)]
    tensor = torch.full((50_000,), 1.2345)
    with _recording(made[0].port) as (port, recorded), ThreadPoolExecutor(2) as threads:
        through = [replace(members[0], port=port), members[1]]
        waiting = [
            threads.submit(enter_network_world, made[n], 1, through, n, timeout_s=60.0, is_over=lambda: False)
            for n in (0, 1)
        ]
        worlds = [each.result() for each in waiting]
        sums = [threads.submit(each.collective(SystemClock()).all_reduce_mean, tensor) for each in worlds]
        for each in sums:
            each.result()
        for world in worlds:
            world.close()
    for listener in made:
        listener.close()
    assert len(recorded) > tensor.nbytes
    assert (tensor[:8].numpy().tobytes() in recorded) is not is_encrypted


@contextmanager
def _recording(port: int) -> Iterator[tuple[int, bytearray]]:
    """A relay that keeps what the side that connects has sent."""
    recorded = bytearray()
    door = socket.create_server((HOST, 0))

    def pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        while data := source.recv(1000):
            kept += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def relay() -> None:
        near, _ = door.accept()
        with near, socket.create_connection((HOST, port)) as far:
            back = threading.Thread(target=pump, args=(far, near, bytearray()))
            back.start()
            pump(near, far, recorded)
            back.join()

    thread = threading.Thread(target=relay)
    thread.start()
    with door:
        yield door.getsockname()[1], recorded
    thread.join()


def test_a_name_that_is_too_long_is_refused_before_it_is_read() -> None:
    with listeners(SECRET) as made, socket.create_connection((HOST, made[0].port)) as stranger:
        claim = Claim("r" * 60_000, 1, "worker-1", 2, "worker-0", 1).to_bytes()
        stranger.sendall(claim[:34])
        assert stranger.recv(1) == b""


def test_every_part_of_a_claim_changes_its_key() -> None:
    claim = Claim("a run", 1, "worker-1", 2, "worker-0", 1)
    others = [
        Claim("another", 1, "worker-1", 2, "worker-0", 1),
        Claim("a run", 2, "worker-1", 2, "worker-0", 1),
        Claim("a run", 1, "worker-2", 2, "worker-0", 1),
        Claim("a run", 1, "worker-1", 3, "worker-0", 1),
        Claim("a run", 1, "worker-1", 2, "worker-00", 1),
        Claim("a run", 1, "worker-1", 2, "worker-0", 2),
    ]
    assert len({claim.key(SECRET), *(other.key(SECRET) for other in others)}) == 7
    assert claim.key(SECRET) != claim.key(b"a guess")


def test_beyond_loopback_there_is_no_connection_without_tls(wording: Wording) -> None:
    with wording.raises(NotReadyError):
        MeshListener("0.0.0.0", run="a run", name="worker-0", token=SECRET)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("!IIQQIQ", wire.MAGIC, Kind.NUMBERS, 8, 1, 8, 0),  # of an earlier generation
        struct.pack("!IIQQIQ", wire.MAGIC, Kind.NUMBERS, 9, 2, 8, 0),  # out of order
        struct.pack("!IIQQIQ", wire.MAGIC, Kind.MEANS, 9, 1, 8, 0),  # of another kind
        struct.pack("!IIQQIQ", 0x12345678, Kind.NUMBERS, 9, 1, 8, 0),  # of another protocol
        struct.pack("!IIQQIQ", wire.MAGIC, Kind.NUMBERS, 9, 1, 1 << 31, 0),  # more numbers than there can be
        struct.pack("!IIQQIQ", wire.MAGIC, Kind.NUMBERS, 9, 1, 16, 0) + bytes(16),  # more than expected
        struct.pack("!IIQQIQ", wire.MAGIC, Kind.NUMBERS, 9, 1, 8, 1 << 62) + bytes(8),  # a payload
    ],
)
def test_a_message_that_is_not_the_expected_one_ends_the_connection(head: bytes) -> None:
    own, other = socket.socketpair()
    mesh = Mesh(9, ["worker-0", "worker-1"], {1: own}, timeout_s=60.0, is_over=lambda: False)
    other.sendall(head)
    with pytest.raises(ProtocolError):
        NetworkGeneration(mesh, 0, parties=2).exchange((1,))
    assert mesh.lost
    mesh.close()
    other.close()


@pytest.mark.parametrize("announced", [1 << 41, 1 << 63])
def test_a_state_that_is_too_large_is_not_received(announced: int) -> None:
    own, other = socket.socketpair()
    mesh = Mesh(9, ["worker-0", "worker-1"], {1: own}, timeout_s=60.0, is_over=lambda: False)
    other.sendall(struct.pack("!IIQQIQ", wire.MAGIC, Kind.STATE, 9, 1, 32, announced) + bytes(32))
    with pytest.raises(ProtocolError):
        NetworkGeneration(mesh, 0, parties=2).copy_state({0: 1}, b"")
    mesh.close()
    other.close()


def test_a_state_that_was_changed_on_the_way_is_not_taken(wording: Wording) -> None:
    own, other = socket.socketpair()
    mesh = Mesh(9, ["worker-0", "worker-1"], {1: own}, timeout_s=60.0, is_over=lambda: False)
    theirs = Mesh(9, ["worker-0", "worker-1"], {0: other}, timeout_s=60.0, is_over=lambda: False)
    message = Message(bytes(32), (memoryview(b"a state"),))
    theirs.swap(Kind.STATE, {0: message}, [], lambda *_: (), SystemClock())
    with wording.raises(TrainingError):
        NetworkGeneration(mesh, 0, parties=2).copy_state({0: 1}, b"")
    mesh.close()
    theirs.close()


def test_a_silent_peer_is_an_error_after_the_timeout(wording: Wording) -> None:
    own, other = socket.socketpair()
    mesh = Mesh(9, ["worker-0", "worker-1"], {1: own}, timeout_s=0.2, is_over=lambda: False)
    with wording.raises(PeerLostError):
        NetworkGeneration(mesh, 0, parties=2).exchange((1,))
    mesh.close()
    other.close()


def test_waiting_for_a_member_that_never_comes_ends_with_the_generation() -> None:
    over = threading.Event()
    with listeners(SECRET, SECRET) as made, ThreadPoolExecutor(1) as threads:
        members = members_of(made)
        waiting = threads.submit(
            enter_network_world, made[0], 1, members, 0, timeout_s=60.0, is_over=over.is_set
        )
        over.set()
        made[0].wake()
        with pytest.raises(PeerLostError):
            waiting.result()


def encrypted() -> PeerTls:
    server, certificate = server_tls_context(HOST)
    return PeerTls(server, certificate, client_tls_context)


def secured(near: socket.socket, far: socket.socket) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    tls = encrypted()
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(tls.server.wrap_socket, far, server_side=True)
        own = tls.trusting(tls.certificate).wrap_socket(near, server_hostname=HOST)
        return own, accepting.result()


@pytest.mark.parametrize("end", [shut, lambda own: _mesh_of(own).close()])
def test_a_connection_that_was_ended_takes_and_sends_no_plain_text(
    end: Callable[[socket.socket], None],
) -> None:
    """A thread that waited on it tries again, when the kernel has bytes that are not encrypted."""
    near, far = socket.socketpair()
    line = socket.socket(fileno=os.dup(far.fileno()))  # what is really sent
    own, peer = secured(near, far)
    with own, peer, line, own.makefile("rb"):  # a file keeps it from being closed for good
        line.sendall(b"plain text")
        end(own)
        assert own.version() == "TLSv1.3"  # None: it is a plain socket from now on
        for use in (lambda: own.recv(100), lambda: own.send(b"a tensor")):
            with pytest.raises(ssl.SSLError):
                use()
        sent = b""
        while part := line.recv(4096):
            sent += part
        assert b"a tensor" not in sent


def _mesh_of(own: socket.socket) -> Mesh:
    return Mesh(9, ["worker-0", "worker-1"], {1: own}, timeout_s=60.0, is_over=lambda: False)


def test_a_frozen_member_behind_tls_does_not_hold_up_the_end_of_a_generation() -> None:
    over = threading.Event()
    tls = encrypted()
    own = MeshListener(HOST, run="a run", name="worker-1", token=SECRET, tls=tls)
    with ThreadPoolExecutor(1) as threads, socket.create_server((HOST, 0)) as frozen:
        port = frozen.getsockname()[1]
        members = [Member("worker-0", 1, HOST, port, tls.certificate), Member("worker-1", 2, HOST, own.port)]
        waiting = threads.submit(own.connect, 1, 1, members, timeout_s=60.0, is_over=over.is_set)
        accepted, _ = frozen.accept()
        with accepted:
            accepted.settimeout(CONNECT_TIMEOUT_S / 2)
            assert accepted.recv(1)  # it is in the middle of the handshake
            over.set()
            own.wake()
            while accepted.recv(4096):
                pass  # it has hung up
            with pytest.raises(PeerLostError):
                waiting.result()
    own.close()


def test_connections_that_never_begin_tls_are_limited_in_number() -> None:
    own = MeshListener(HOST, run="a run", name="worker-0", token=SECRET, tls=encrypted())
    with ExitStack() as opened:
        first = opened.enter_context(socket.create_connection((HOST, own.port)))
        until(lambda: len(own._listener._unauthenticated._since_s) == 1, "it was accepted")
        for _ in range(MAX_UNAUTHENTICATED):
            opened.enter_context(socket.create_connection((HOST, own.port)))
        first.settimeout(HANDSHAKE_TIMEOUT_S / 2)
        assert first.recv(1) == b""
    own.close()


def test_workers_connect_by_ipv6() -> None:
    made = [MeshListener("::1", run="a run", name=f"worker-{rank}", token=SECRET) for rank in (0, 1)]
    members = [Member(f"worker-{rank}", rank, "::1", made[rank].port) for rank in (0, 1)]
    early = connect(made[1], 1, members)
    late = connect(made[0], 0, members)
    early[0].sendall(b"hello")
    assert late[1].recv(5) == b"hello"
    for connections in (early, late):
        close(connections)
    for listener in made:
        listener.close()


def test_connecting_to_a_frozen_member_ends_with_the_generation() -> None:
    """Its kernel accepts the connection, and no process answers."""
    over = threading.Event()
    with (
        listeners(SECRET, SECRET) as made,
        ThreadPoolExecutor(1) as threads,
        socket.create_server((HOST, 0)) as frozen,
    ):
        members = [Member("worker-0", 1, HOST, frozen.getsockname()[1]), members_of(made)[1]]
        waiting = threads.submit(made[1].connect, 1, 1, members, timeout_s=60.0, is_over=over.is_set)
        accepted, _ = frozen.accept()
        over.set()
        made[1].wake()
        with accepted, pytest.raises(PeerLostError):
            waiting.result()


@pytest.mark.soak
def test_a_large_state_may_take_longer_than_the_timeout_while_its_receiver_reads() -> None:
    near, far = socket.socketpair()
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
    own, peer = secured(near, far)
    with ThreadPoolExecutor(1) as threads:
        timeout_s = 5.0
        state = memoryview(bytearray(8_000_000))

        def read() -> float:
            begun_s = monotonic_s()
            left = len(state)
            while left > 0:
                SystemClock().sleep(0.03)
                left -= len(peer.recv(32_768))
            return monotonic_s() - begun_s

        reading = threads.submit(read)
        mesh = Mesh(9, ["worker-0", "worker-1"], {1: own}, timeout_s=timeout_s, is_over=lambda: False)
        mesh.swap(Kind.STATE, {1: Message(payload=(state,))}, [], lambda *_: (), SystemClock())
        assert reading.result() > timeout_s
        mesh.close()
        peer.close()


def test_refusals_for_the_same_reason_are_one_line_a_minute() -> None:
    refusals = Refusals()
    token = PeerLostError("the peer does not have this run's token", "…")
    assert refusals.line(token, 0.0) == f"refused a connection: {token}"
    for number in range(5):
        line = refusals.line(ProtocolError(f"a connection began with {number:#x}", "…"), 1.0)
        assert (line is not None) == (number == 0), "what a stranger sends makes no reason of its own"
        assert refusals.line(token, REFUSALS_S - 1) is None
    assert refusals.line(TimeoutError("timed out"), 1.0) is not None
    assert refusals.line(token, REFUSALS_S) == f"refused a connection: {token} (and 5 like it before)"
    assert refusals.line(token, 2 * REFUSALS_S) == f"refused a connection: {token}"
