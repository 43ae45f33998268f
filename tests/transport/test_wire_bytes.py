"""Bytes on the wire are those that the kernel has counted on the connections of a group."""

import socket
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real

from paceline.core.tcp import SocketBytes, WireBytes
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import Json
from paceline.plan.plan import Transport
from paceline.training.result import wire_json

SENT = 300_000
ANSWERED = 70_000


def _receive(connection: socket.socket, count: int) -> None:
    while count:
        count -= len(connection.recv(count))


def test_only_connections_that_were_opened_meanwhile_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        earlier = socket.create_connection(server.getsockname())
        earlier_peer, _ = server.accept()
        counted = SocketBytes()
        near = socket.create_connection(server.getsockname())
        counted.begin()  # the other end is accepted later, so it is not counted
        far, _ = server.accept()
        with earlier, earlier_peer, near, far:
            earlier.sendall(b"not counted")
            near.sendall(bytes(SENT))
            _receive(far, SENT)
            far.sendall(bytes(ANSWERED))
            _receive(near, ANSWERED)
            assert counted.total() == WireBytes(sent=SENT, received=ANSWERED)
        assert counted.total() is None, "a closed connection has no count"


def test_without_a_connection_there_is_no_count() -> None:
    counted = SocketBytes()
    counted.begin()
    assert counted.total() is None


def test_a_result_has_wire_bytes_if_every_worker_counted_them() -> None:
    counted: dict[str, Json] = {"steps_s": 1.0, "wire_out_bytes": 5, "wire_in_bytes": 6}
    assert wire_json({"worker-0": counted, "worker-1": counted}) == {"wire_bytes": {"out": 10, "in": 12}}
    assert wire_json({"worker-0": counted, "worker-1": {"steps_s": 1.0}}) == {}
    assert wire_json({}) == {}


@pytest.mark.parametrize("mode", ["ssgd", "ddp"])
def test_a_ring_of_gloo_sends_at_least_what_the_formula_says(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(mode, num_workers=3, steps=30, transport=Transport.GLOO)
    result = real(plan, tmp_path / "run", launcher).result
    computed = result["bytes"]
    measured = result["wire_bytes"]
    assert isinstance(computed, dict)
    assert isinstance(measured, dict)
    for way in ("out", "in"):
        assert int(str(measured[way])) >= int(str(computed[way])) > 0
    # What one end has sent the other has received, up to what arrives after the first end was read.
    assert int(str(measured["in"])) == pytest.approx(int(str(measured["out"])), rel=0.05)
