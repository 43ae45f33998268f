"""The command's side of agents: who may connect, what may be written, and where participants are placed."""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.fixtures.waiting import until

from paceline import __version__
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators, TokenFile
from paceline.core.clock import boot_id
from paceline.core.errors import NotReadyError, ProtocolError
from paceline.launchers.agents.agent import Agent, AgentSettings, run_agent
from paceline.launchers.agents.folder import RunFolder, Scratch, parts_of
from paceline.launchers.agents.group import AgentGroup
from paceline.launchers.agents.hosted_run import Helper, HostedRun, Slots
from paceline.launchers.agents.hub import MAX_UNAUTHENTICATED, Arrived, Gone, Hub, Received
from paceline.launchers.agents.launcher import Agents
from paceline.launchers.agents.placement import HostRoom, choose_host, host_apart
from paceline.launchers.agents.wire import HANDSHAKE_S, Message, Peer
from paceline.launchers.elastic import ElasticSupervisor
from paceline.launchers.supervision import RestartPolicy
from paceline.plan.plan import Elastic, Plan
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


async def greet(hub: Hub, message: Message) -> Message:
    """The hub's first answer."""
    host, _, port = hub.address.rpartition(":")
    context = client_tls_context(hub.certificate)
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
        await end(peer)


async def end(peer: Peer) -> None:
    """Close the connection, also the socket: the event loop ends next."""
    peer.close()
    with suppress(OSError):  # the hub may have ended the connection first
        await peer._writer.wait_closed()


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


@pytest.mark.parametrize("begins_tls", [False, True])
def test_half_open_connections_of_strangers_do_not_keep_an_agent_out(hub: Hub, begins_tls: bool) -> None:
    host, _, port = hub.address.rpartition(":")
    context = client_tls_context(hub.certificate)
    with ExitStack() as opened:

        def connect() -> socket.socket:
            plain = opened.enter_context(socket.create_connection((host, int(port))))
            if not begins_tls:
                return plain
            return opened.enter_context(context.wrap_socket(plain, server_hostname=host))

        first = connect()
        for _ in range(MAX_UNAUTHENTICATED + 5):
            connect()
        assert asyncio.run(greet(hub, hello(hub)))["op"] == "welcome"
        first.settimeout(HANDSHAKE_S / 2)
        with suppress(ConnectionError):
            assert first.recv(1) == b"", "the oldest was ended"


def test_another_version_is_refused_with_the_reason(hub: Hub) -> None:
    answer = asyncio.run(greet(hub, hello(hub, paceline="0.0.1")))
    assert answer["op"] == "refused"
    assert "0.0.1" in str(answer["why"])


def test_an_agent_accepts_no_other_certificate(hub: Hub) -> None:
    _, other = server_tls_context("127.0.0.1")
    host, _, port = hub.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, pytest.raises(ssl.SSLError):
        client_tls_context(other).wrap_socket(connection, server_hostname=host)


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
    assert host_apart("server-1", first, [first, second]) is None, "it is alone there"
    both = HostRoom("both", 0, {"server-0", "server-1"})
    assert host_apart("server-1", both, [both, second]) == "second"
    assert host_apart("server-1", both, [both]) is None
    slots_of_one = HostRoom("third", 8, machine="node-1")
    first.machine = "node-1"
    assert choose_host("server-1", [first, second, slots_of_one]) == "second"


def frame(text: bytes, blob: bytes = b"") -> bytes:
    return struct.pack("!4sII", b"PLA1", len(text), len(blob)) + text + blob


@contextmanager
def agent_of(hub: Hub) -> Iterator[ssl.SSLSocket]:
    """A connection that the hub has admitted."""
    host, _, port = hub.address.rpartition(":")
    context = client_tls_context(hub.certificate)
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        greeting = hello(hub, boot=boot_id(), scratch="/scratch")
        connection.sendall(frame(json.dumps(greeting).encode()))
        yield connection


def until_arrived(hub: Hub) -> str:
    arrived: list[Arrived] = []

    def is_there() -> bool:
        event = hub.next_event(0.1)
        if isinstance(event, Arrived):
            arrived.append(event)
        return bool(arrived)

    until(is_there, "it was admitted")
    return arrived[0].host


def receive(connection: ssl.SSLSocket) -> tuple[Message, bytes]:
    """The next message of the hub that is no tick."""
    with connection.makefile("rb") as stream:
        while True:
            _, text_bytes, blob_bytes = struct.unpack("!4sII", stream.read(12))
            message = json.loads(stream.read(text_bytes))
            blob = stream.read(blob_bytes)
            if message["op"] not in ("tick", "welcome"):
                return message, blob


def test_a_host_that_does_not_receive_a_checkpoint_delays_no_other(hub: Hub, tmp_path: Path) -> None:
    file = tmp_path / "worker-0.safetensors"
    with file.open("wb") as whole:
        whole.truncate(64 << 20)
    with agent_of(hub):
        silent = until_arrived(hub)
        hub.send_file(silent, file, "checkpoints/at-5/worker-0.safetensors")
        assert hub.next_event(0.0) is None, "it is not even gone: nothing waited for it"
        with agent_of(hub) as other:
            hub.send(until_arrived(hub), {"op": "stop"})
            assert receive(other)[0]["op"] == "stop"


def test_a_file_comes_before_what_is_sent_after_it_also_when_it_was_removed(hub: Hub, tmp_path: Path) -> None:
    file = tmp_path / "worker-0.json"
    file.write_bytes(b"facts")
    with agent_of(hub) as connection:
        host = until_arrived(hub)
        hub.send_file(host, file, "checkpoints/at-5/worker-0.json")
        file.unlink()
        hub.send(host, {"op": "start"})
        assert receive(connection) == (
            {"op": "file", "path": "checkpoints/at-5/worker-0.json", "is_first": True, "is_last": True},
            b"facts",
        )
        assert receive(connection)[0]["op"] == "start"


def test_a_large_message_over_a_slow_link_is_no_silence() -> None:
    silence_s = 0.5

    async def receive_slowly() -> tuple[Message, bytes]:
        ours, theirs = socket.socketpair()
        with theirs:
            peer = Peer(*await asyncio.open_connection(sock=ours))
            receiving = asyncio.create_task(peer.receive(silence_s))
            for byte in frame(b'{"ev": "log"}', bytes(8)):
                theirs.send(bytes([byte]))
                await asyncio.sleep(silence_s / 5)
            try:
                return await receiving
            finally:
                await end(peer)

    assert asyncio.run(receive_slowly()) == ({"ev": "log"}, bytes(8))


def until_gone(hub: Hub) -> Gone:
    gone: list[Gone] = []

    def is_gone() -> bool:
        event = hub.next_event(0.1)
        if isinstance(event, Gone):
            gone.append(event)
        return bool(gone)

    until(is_gone, "the connection ended")
    return gone[0]


@pytest.mark.parametrize("text", [b"not JSON", b"[" * 8000, b'{"no": "kind"}', b"[1]"])
def test_the_reason_why_a_host_is_gone_is_what_it_sent(hub: Hub, text: bytes) -> None:
    with agent_of(hub) as connection:
        connection.sendall(frame(text))
        assert "a message" in until_gone(hub).why


def test_the_reason_why_a_host_is_gone_is_the_error_of_its_connection(hub: Hub) -> None:
    """TLS and the network report errors that are no ConnectionError."""
    with agent_of(hub) as connection:
        until(lambda: isinstance(hub.next_event(0.1), Arrived), "it was admitted")
        with socket.socket(fileno=connection.detach()) as plain:
            plain.sendall(b"no TLS" * 100)
            gone = until_gone(hub)
    assert "command" not in gone.why
    assert gone.why


def test_a_line_of_the_event_log_may_come_in_two_messages(tmp_path: Path) -> None:
    with closing(RunFolder(PLAN, tmp_path)) as folder:
        folder.append_events("a", b'{"kind":"first"}\n{"kind":')
        folder.append_events("b", b'{"kind":"other"}\n{"kind":"lo')
        folder.append_events("a", b'"second"}\n')
        folder.forget("b")
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["first", "other", "second"]


def test_the_rest_of_a_file_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "checkpoints").write_text("in the way")
    with closing(RunFolder(PLAN, run_dir)) as folder:
        first, *rest = parts_of(source, "checkpoints/at-5/worker-0.safetensors")
        with pytest.raises(OSError, match="checkpoints"):
            folder.receive("a", *first)
        for part in rest:
            folder.receive("a", *part)
    assert [path.name for path in run_dir.iterdir() if path.name != "events.jsonl"] == ["checkpoints"]


def test_only_logs_of_participants_are_sent(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, "r")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").write_bytes(b"own")
    (tmp_path / "logs" / "my_library.log").write_bytes(b"a task's")
    assert [data for _, data in scratch.take_text()] == [b"own"]


class Registry:
    def lost(self, participant: str, pid: int, reason: str) -> None: ...

    def give_up(self) -> None: ...


def group_of(hub: Hub, folder: RunFolder, on_message: Callable[[Message], None]) -> AgentGroup:
    supervisor = ElasticSupervisor(
        coordinator={},
        registry=Registry(),
        restarts=RestartPolicy(budget=1, min_workers=1),
        say=lambda _: None,
        elastic=Elastic(workers=1, min_workers=1, max_workers=1),
        shards=2,
    )
    return AgentGroup(PLAN, hub, folder, on_message, lambda: False, supervisor, Agents())


def test_a_message_that_breaks_the_protocol_ends_the_connection_and_not_the_run(
    hub: Hub, tmp_path: Path
) -> None:
    notes: list[Message] = []
    with closing(RunFolder(PLAN, tmp_path)) as folder, agent_of(hub) as connection:
        group = group_of(hub, folder, notes.append)
        connection.sendall(frame(b'{"ev": "log", "who": "../x"}', b"text"))

        def has_noted(text: str) -> bool:
            group._handle_events(0.1)
            return any(text in str(note.get("text")) for note in notes)

        until(lambda: has_noted("is ended"), "its connection is closed")
        while connection.recv(1000):
            pass
        connection.close()
        until(lambda: has_noted("is gone"), "it is gone")


def test_a_log_that_cannot_be_written_does_not_end_the_run(hub: Hub, tmp_path: Path) -> None:
    notes: list[Message] = []
    (tmp_path / "logs").write_text("in the way")
    with closing(RunFolder(PLAN, tmp_path)) as folder, agent_of(hub) as connection:
        group = group_of(hub, folder, notes.append)
        for _ in range(3):
            connection.sendall(frame(b'{"ev": "log", "who": "worker-0"}', b"text"))
        connection.sendall(frame(b'{"ev": "draining"}'))

        def is_draining() -> bool:
            group._handle_events(0.1)
            return any("is draining" in str(note.get("text")) for note in notes)

        until(is_draining, "the messages behind it were taken")
    assert sum("warning" in str(note["text"]) for note in notes) == 1


def test_an_agent_that_returns_at_the_end_of_the_run_does_not_hold_it_up(hub: Hub, tmp_path: Path) -> None:
    notes: list[Message] = []
    with closing(RunFolder(PLAN, tmp_path)) as folder, agent_of(hub) as connection:
        group = group_of(hub, folder, notes.append)
        group._is_over = True  # it waits for other hosts

        def is_there() -> bool:
            group._handle_events(0.1)
            return bool(group._lost)

        until(is_there, "it was there")
        assert all(host.is_over for host in group._hosts.values())
        while connection.recv(1000):
            pass
    assert notes == []


def hosted_run(hub: Hub, folder: Path, take_helper: Callable[[], Helper]) -> HostedRun:
    return HostedRun(
        offer=pb.OfferRun(run="r", address=hub.address, certificate=hub.certificate, secret=hub.secret),
        name="a",
        folder=folder,
        take_helper=take_helper,
        slots=Slots(2),
        coordinator={},
        address="127.0.0.1",
        note=lambda _: None,
        is_draining=lambda: False,
    )


OUTPUT_BYTES = 32 << 20


@contextmanager
def heavy_output(folder: Path) -> Iterator[Scratch]:
    scratch = Scratch(folder, "r")
    (folder / "logs").mkdir()
    (folder / "logs" / "worker-0.log").write_bytes(bytes(OUTPUT_BYTES))
    yield scratch


async def _send_output(hosted: HostedRun, *, reads: bool) -> tuple[int, int]:
    """What of it is in memory while the command receives nothing, and how many bytes it receives."""
    received = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        peer = Peer(reader, writer)
        try:
            while reads:
                received += len((await peer.receive(HANDSHAKE_S))[1])
            await asyncio.Event().wait()
        except ConnectionError:
            pass
        finally:
            await end(peer)

    accepted: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(asyncio.create_task(take(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    hosted._peer = Peer(reader, writer)
    sending = [asyncio.create_task(hosted._send_text()) for _ in range(3)]
    try:
        if not reads:
            await asyncio.wait(sending, timeout=0.5)
            return writer.transport.get_write_buffer_size(), received
        await asyncio.gather(*sending)
        while received < OUTPUT_BYTES:
            await asyncio.sleep(0.01)
        return 0, received
    finally:
        for task in (*sending, *accepted):
            task.cancel()
        hosted._peer.abort()
        await asyncio.gather(*sending, *accepted, hosted._peer.closed(), return_exceptions=True)
        server.close()


@pytest.mark.parametrize("reads", [False, True], ids=["stuck", "slow"])
def test_heavy_output_over_a_slow_link_waits_on_the_disk(hub: Hub, tmp_path: Path, reads: bool) -> None:
    hosted = hosted_run(hub, tmp_path, Helper)
    with heavy_output(tmp_path) as hosted._scratch:
        in_memory, received = asyncio.run(_send_output(hosted, reads=reads))
    assert in_memory < OUTPUT_BYTES / 8
    assert received == (OUTPUT_BYTES if reads else 0), "each byte once, also with several senders"


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "checkpoints/../x", "checkpoints/at-5/../x", "events.jsonl"]
)
def test_the_command_writes_no_other_files_on_a_host(hub: Hub, tmp_path: Path, path: str) -> None:
    hosted = hosted_run(hub, tmp_path, Helper)
    with pytest.raises(ProtocolError):
        hosted._write_file({"path": path, "is_first": True, "is_last": True}, b"x")
    hosted._write_file({"path": "checkpoints/at-5/worker-0.json", "is_first": True, "is_last": True}, b"x")
    assert (tmp_path / "checkpoints" / "at-5" / "worker-0.json").read_bytes() == b"x"


def test_a_participant_ordered_after_the_plan_was_refused_takes_no_slot(hub: Hub, tmp_path: Path) -> None:
    hosted = hosted_run(hub, tmp_path, Helper)

    async def refuse() -> None:
        peer, _ = await hosted._connect()
        hosted._peer = peer
        hosted._scratch = Scratch(tmp_path, "r")
        await hosted._pass_on({"ev": "refused", "problems": [], "exit_code": 2})
        await hosted._fork({"op": "fork", "who": "worker-0", "index": 0})
        await end(peer)

    asyncio.run(refuse())
    assert hosted.slots.free == 2


def test_room_that_comes_free_while_a_host_joins_is_announced(hub: Hub, tmp_path: Path) -> None:
    hosted = hosted_run(hub, tmp_path, Helper)
    hosted.slots.used = 2  # by an earlier command's run, which ends now

    async def join() -> None:
        peer, _ = await hosted._connect()
        hosted.slots.used = 0
        hosted.announce_room()  # there is no connection yet
        hosted._peer = peer
        hosted.announce_room()
        hosted.announce_room()
        peer.send({"ev": "draining"})
        await peer.drain()
        await asyncio.to_thread(until, has_all, "all messages arrived")
        await end(peer)

    seen: list[object] = []

    def has_all() -> bool:
        event = hub.next_event(0.1)
        if isinstance(event, Arrived):
            seen.append(event.hello["free"])
        if isinstance(event, Received):
            seen.append(event.message)
        return {"ev": "draining"} in seen

    asyncio.run(join())
    assert seen == [0, {"ev": "slots", "free": 2}, {"ev": "draining"}]


def test_a_run_whose_connection_has_ended_is_told_nothing(hub: Hub, tmp_path: Path) -> None:
    """Its workers may still be ending, and the agent serves other runs."""
    hosted = hosted_run(hub, tmp_path, Helper)

    async def outlive() -> None:
        hosted._peer, _ = await hosted._connect()
        hosted._peer.close()
        hosted._peer.close()  # asyncio closes it likewise, when the command was first
        hosted.slots.used = 1
        hosted.announce_room()
        hosted.announce_drain()
        await hosted._peer.closed()

    asyncio.run(outlive())
    assert "closed" in until_gone(hub).why


def test_a_run_that_cannot_start_on_a_host_ends_its_connection(hub: Hub, tmp_path: Path) -> None:
    def no_helper() -> Helper:
        raise OSError("no process can be started")

    with pytest.raises(OSError, match="no process"):
        asyncio.run(_run_and_wait(hosted_run(hub, tmp_path, no_helper), hub))


async def _run_and_wait(hosted: HostedRun, hub: Hub) -> None:
    try:
        await hosted.run()
    finally:
        assert "closed" in (await asyncio.to_thread(until_gone, hub)).why
        assert hosted._peer is not None
        await end(hosted._peer)


def test_an_agent_without_a_scratch_folder_says_so_before_it_joins(tmp_path: Path) -> None:
    coordinators = Coordinators(addresses=("127.0.0.1:9",), credentials=TokenFile(tmp_path / "token"))
    with pytest.raises(NotReadyError) as caught:
        run_agent(settings_of(coordinators, tmp_path / "missing"), lambda _: None)
    assert "--scratch" in caught.value.hint


def test_offers_that_could_not_be_read_are_read_again(tmp_path: Path) -> None:
    """A new offer is announced only once."""
    coordinators = Coordinators(addresses=("127.0.0.1:9",), credentials=TokenFile(tmp_path / "missing"))
    agent = Agent(settings_of(coordinators, tmp_path), lambda _: None)

    async def read() -> None:
        membership = agent._join(asyncio.get_running_loop())
        await agent._read_offers(membership)
        await asyncio.to_thread(membership.close, "the test is over")

    assert not agent._changed.is_set()
    asyncio.run(read())
    assert agent._changed.is_set()


def settings_of(coordinators: Coordinators, scratch: Path) -> AgentSettings:
    return AgentSettings(
        coordinators=coordinators, name="a", slots=1, labels={}, scratch=scratch, drain_timeout_s=1.0
    )
