"""The command's side of agents: who may connect, what may be written, and where participants are placed."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.fixtures.waiting import until

from paceline import __version__
from paceline.core.errors import ProtocolError
from paceline.launchers.agents.folder import RunFolder, Scratch, parts_of
from paceline.launchers.agents.group import HostRoom, choose_host
from paceline.launchers.agents.hub import Arrived, Hub, Received
from paceline.launchers.agents.wire import HANDSHAKE_S, Message, Peer
from paceline.plan.plan import Plan
from paceline.worker.tls import client_tls_context, server_tls_context

PLAN = Plan(run="r", task="xor", mode="ssgd", num_workers=2, steps=5, batch_sizes=(8, 8))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with closing(Hub("127.0.0.1")) as hub:
        yield hub


def hello(hub: Hub, **changes: object) -> Message:
    fields: dict[str, object] = {"name": "a", "secret": hub.secret.hex(), "paceline": __version__}
    fields |= {"boot": "x", "free": 1, "total": 1}
    return {**fields, **changes}  # type: ignore[dict-item]  # JSON


async def greet(hub: Hub, message: Message, *, certificate: str | None = None) -> Message:
    """The hub's first answer."""
    host, _, port = hub.address.rpartition(":")
    context = client_tls_context(certificate or hub.certificate)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
    peer = Peer(reader, writer)
    try:
        peer.send(message)
        answer, _ = await peer.receive(HANDSHAKE_S)
        for _ in range(int(str(answer.get("rounds", 0)))):
            peer.send({"ev": "clock"})
            await peer.receive(HANDSHAKE_S)
        if answer["op"] == "welcome":
            peer.send({"ev": "draining"})
            await peer.drain()
        return answer
    finally:
        peer.close()


def test_an_agent_with_the_secret_is_admitted_and_measures_the_clock(hub: Hub) -> None:
    answer = asyncio.run(greet(hub, hello(hub)))
    assert answer["op"] == "welcome"
    seen: list[object] = []

    def has_both() -> bool:
        event = hub.next_event(0.1)
        if event is not None:
            seen.append(event)
        return any(isinstance(e, Received) for e in seen)

    until(has_both, "the agent and its message arrived")
    arrived = seen[0]
    assert isinstance(arrived, Arrived)
    assert "secret" not in arrived.hello


@pytest.mark.parametrize("secret", ["", "00" * 32])
def test_a_stranger_gets_no_answer(hub: Hub, secret: str) -> None:
    with pytest.raises(ConnectionError):
        asyncio.run(greet(hub, hello(hub, secret=secret)))
    assert hub.next_event(0.2) is None


def test_another_version_is_refused_with_the_reason(hub: Hub) -> None:
    answer = asyncio.run(greet(hub, hello(hub, paceline="0.0.1")))
    assert answer["op"] == "refused"
    assert "0.0.1" in str(answer["why"])


def test_an_agent_accepts_no_other_certificate(hub: Hub) -> None:
    _, other = server_tls_context("127.0.0.1")
    with pytest.raises(ssl.SSLError):
        asyncio.run(greet(hub, hello(hub), certificate=other))


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/passwd",
        "plan.json",
        "result.json",
        "events.jsonl",
        "checkpoints/../x",
        ".lock",
        "logs/a.log",
    ],
)
def test_files_of_other_names_are_refused(tmp_path: Path, path: str) -> None:
    with closing(RunFolder(PLAN, tmp_path)) as folder, pytest.raises(ProtocolError):
        folder.receive("a", {"path": path, "is_first": True, "is_last": True}, b"x")


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with closing(RunFolder(PLAN, run_dir)) as folder:
        *first, last = parts_of(source, "confusion.json")
        for message, data in first:
            folder.receive("a", message, data)
        assert not (run_dir / "confusion.json").exists()
        folder.receive("a", *last)
        assert (run_dir / "confusion.json").read_bytes() == source.read_bytes()
        folder.receive("b", *first[0])
        folder.forget("b")
        assert [path.name for path in run_dir.iterdir() if path.name.endswith(".part")] == []


def test_new_lines_of_a_scratch_folder_are_taken_once(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "run", "r")
    with (tmp_path / "run" / "events.jsonl").open("ab") as events:
        events.write(b'{"kind":"a"}\n{"kind":')
        events.flush()
        assert [data for _, data in scratch.take_text()] == [b'{"kind":"a"}\n']
        events.write(b'"b"}\n')
    assert [data for _, data in scratch.take_text()] == [b'{"kind":"b"}\n']
    assert list(scratch.take_text()) == []


def test_participants_spread_over_hosts_with_room_and_avoid_those_that_lost_them() -> None:
    full = HostRoom("full", 0)
    small = HostRoom("small", 1)
    large = HostRoom("large", 3)
    leaving = HostRoom("leaving", 9, is_draining=True)
    assert choose_host("worker-0", [full, small, large, leaving]) == "large"
    large.lost = {"worker-0": 1}
    assert choose_host("worker-0", [full, small, large, leaving]) == "small"
    assert choose_host("worker-0", [large]) == "large"
    assert choose_host("worker-0", [full, leaving]) is None


def test_two_servers_are_on_two_hosts_if_there_are_two() -> None:
    first = HostRoom("first", 8, {"server-0"})
    second = HostRoom("second", 1)
    assert choose_host("server-1", [first, second]) == "second"
    assert choose_host("server-1", [first]) == "first"
