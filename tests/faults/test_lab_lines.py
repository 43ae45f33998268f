"""Links between processes are cut, healed and degraded by a seed, for some callers only."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from paceline.coordinator.server.partitions import local_ports_of
from paceline.faults.scenarios.coordinator_nodes import LinkConditions, link_proxies

SHORT_S = 0.2


@contextmanager
def echo() -> Iterator[str]:
    """A server that says everything back; its address."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # lines are cut here: that is what is tested
            while data := connection.recv(100):
                connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@contextmanager
def stranger() -> Iterator[int]:
    """A process that has nothing to do with us."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def call(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_a_cut_link_is_silent_and_the_data_arrives_when_it_heals() -> None:
    with echo() as target, link_proxies({1: target}) as proxies, call(proxies.addresses[1]) as caller:
        caller.sendall(b"before")
        assert caller.recv(100) == b"before"
        proxies.cut([os.getpid()], [1])
        caller.sendall(b"meanwhile")
        caller.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            caller.recv(100)
        caller.settimeout(10)
        proxies.heal()
        assert caller.recv(100) == b"meanwhile"


def test_other_links_are_not_disturbed_and_a_new_link_is_cut_as_well() -> None:
    with stranger() as other_pid, echo() as target, link_proxies({1: target, 2: target}) as proxies:
        proxies.cut([other_pid], [1])
        with call(proxies.addresses[1]) as caller:
            caller.sendall(b"a")
            assert caller.recv(100) == b"a"
        proxies.cut([os.getpid()], [1])
        with call(proxies.addresses[1]) as silent, call(proxies.addresses[2]) as other:
            other.sendall(b"b")
            assert other.recv(100) == b"b"
            silent.sendall(b"c")
            silent.settimeout(SHORT_S)
            with pytest.raises(TimeoutError):
                silent.recv(100)
        proxies.heal()


def test_the_kernel_reports_which_process_owns_a_port() -> None:
    with stranger() as other_pid, echo() as target, call(target) as caller:
        assert caller.getsockname()[1] in local_ports_of([os.getpid()])
        assert caller.getsockname()[1] not in local_ports_of([other_pid])


def test_bad_link_conditions_are_the_same_for_the_same_seed() -> None:
    link_conditions = LinkConditions(lost_share=0.2, stall_share=0.3, stall_s=0.1, late_s=(0.0, 0.05), seed=3)
    other = LinkConditions(lost_share=0.2, stall_share=0.3, stall_s=0.1, late_s=(0.0, 0.05), seed=3)
    assert [link_conditions.next() for _ in range(50)] == [other.next() for _ in range(50)]
    assert link_conditions.lost > 0
    assert link_conditions.stalled > 0
    assert link_conditions.lost + link_conditions.stalled + link_conditions.passed == 50


def test_a_lost_piece_breaks_its_connection() -> None:
    with echo() as target, link_proxies({1: target}) as proxies, call(proxies.addresses[1]) as caller:
        proxies.set_conditions(LinkConditions(lost_share=1.0))
        caller.sendall(b"gone")
        with suppress(ConnectionResetError):  # the same, said more plainly
            assert caller.recv(100) == b""
