"""Coordinator nodes of a scenario: local processes that can be killed, linked by TCP proxies.

A proxy delays, drops or cuts the traffic of one link.
"""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from paceline.coordinator.admin.launch import free_ports, start_command
from paceline.coordinator.client.blocking import Background, BlockingClient
from paceline.coordinator.client.nodes_file import NodesFile
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import tokens
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.partitions import local_ports_of
from paceline.coordinator.server.tokens import Tokens
from paceline.core import environ
from paceline.training.elastic import Coordinators


@dataclass(frozen=True, slots=True)
class ChunkFate:
    late_s: float = 0.0
    is_lost: bool = False  # and with it the connection: TCP itself never loses a piece


@dataclass(slots=True)
class LinkConditions:
    """Each piece is late by up to `late_s`, some stall for `stall_s`, and some are lost."""

    late_s: tuple[float, float] = (0.0, 0.0)  # from, to
    stall_share: float = 0.0
    stall_s: float = 0.0
    lost_share: float = 0.0
    seed: int = 0
    lost: int = 0  # so far
    stalled: int = 0
    passed: int = 0
    _dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._dice.seed(self.seed)

    def next(self) -> ChunkFate:
        late_s = self._dice.uniform(*self.late_s)
        drawn = self._dice.random()
        if drawn < self.lost_share:
            self.lost += 1
            return ChunkFate(late_s, is_lost=True)
        if drawn < self.lost_share + self.stall_share:
            self.stalled += 1
            return ChunkFate(late_s + self.stall_s)
        self.passed += 1
        return ChunkFate(late_s)


PERFECT_LINK = LinkConditions()


# Everybody who calls a node, other nodes and workers alike, calls its door: a TCP
# proxy in this process that passes bytes on. A door knows which process a
# connection comes from, so it can be cut for some callers and not for others. A
# cut line is silent, not closed: what was said meanwhile arrives when it is
# mended, as from a network that lost it and sent it again. Nobody needs root.

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection from a caller to a node."""

    port: int  # the caller's
    writers: list[asyncio.StreamWriter]
    is_open: asyncio.Event = field(default_factory=asyncio.Event)  # bytes pass

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class TcpProxy:
    """In front of one node. All its methods run in the loop that it was opened in."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._lines: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[int] = set()  # processes whose lines are cut
        self.weather: LinkConditions = PERFECT_LINK

    async def open(self) -> str:
        """Where it is."""
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        return f"{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self, pids: Collection[int]) -> None:
        self._refused |= set(pids)
        ports = local_ports_of(self._refused)
        for line in self._lines:
            if line.port in ports:
                line.is_open.clear()

    def mend(self) -> None:
        self._refused.clear()
        for line in self._lines:
            line.is_open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        line = _Connection(int(writer.get_extra_info("peername")[1]), [writer])
        self._tasks.add(task)
        self._lines.add(line)
        if not self._refused or line.port not in local_ports_of(self._refused):
            line.is_open.set()
        try:
            await line.is_open.wait()
            await self._pass_on(line, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the node is not there, the line was reset, or all is over
        finally:
            self._tasks.discard(task)
            self._lines.discard(line)
            for each in line.writers:
                await _close(each)

    async def _pass_on(
        self, line: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        line.writers.append(far_writer)
        ways = (
            asyncio.create_task(self._pump(line, reader, far_writer)),
            asyncio.create_task(self._pump(line, far_reader, writer)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(
        self, line: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            fate = self.weather.next()
            await asyncio.sleep(fate.late_s)
            if fate.is_lost:
                line.reset()
                return
            await line.is_open.wait()
            writer.write(data)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # it was reset
        await writer.wait_closed()


@dataclass(slots=True)
class LinkProxies:
    """The doors of all nodes, for callers without an event loop."""

    addresses: dict[int, str]  # of the doors, by node
    _doors: dict[int, TcpProxy]
    _background: Background

    def cut(self, pids: Collection[int], nodes: Collection[int]) -> None:
        """Nothing passes between these processes and those nodes, as far as they are the callers."""

        async def do() -> None:
            for node in nodes:
                self._doors[node].cut(pids)

        self._background.call(do())

    def mend(self) -> None:
        async def do() -> None:
            for door in self._doors.values():
                door.mend()

        self._background.call(do())

    def set_weather(self, weather: LinkConditions) -> None:
        async def do() -> None:
            for door in self._doors.values():
                door.weather = weather

        self._background.call(do())


@contextmanager
def lines(targets: Mapping[int, str]) -> Iterator[LinkProxies]:
    background = Background()
    stack = AsyncExitStack()
    doors = {node: TcpProxy(address) for node, address in targets.items()}

    async def open_all() -> dict[int, str]:
        found = {}
        for node, door in doors.items():
            found[node] = await door.open()
            stack.push_async_callback(door.close)
        return found

    try:
        yield LinkProxies(background.call(open_all()), doors, background)
    finally:
        background.call(stack.aclose())
        background.close()


PATIENCE_S = 30.0
MAX_LAG = 10  # entries: others are being written just now


@dataclass(slots=True)
class CoordinatorNodes:
    folder: Path
    addresses: dict[int, str]  # where each listens
    client: BlockingClient
    proof: Tokens
    lines: LinkProxies | None = None  # between everybody and the nodes, if there are doors
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def known(self) -> dict[int, str]:
        """Where everybody else believes that they are."""
        return self.addresses if self.lines is None else self.lines.addresses

    @property
    def place(self) -> Coordinators:
        return Coordinators(tuple(self.known.values()), self.folder / tokens.TOKENS_NAME)

    def start(self, node: int) -> None:
        cluster = NodesFile(cluster="lab", nodes=self.known)
        more = ["--token-file", str(self.folder / tokens.TOKENS_NAME), "--stop-with-stdin"]
        command = start_command(
            node,
            cluster,
            str(self.data_dir(node)),
            more,
            listen=None if self.lines is None else self.addresses[node],
        )
        with self.log_of(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [sys.executable, "-m", "paceline", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environ.for_child(),
            )

    def data_dir(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def log_of(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def pid(self, node: int) -> int:
        return self._processes[node].pid

    def others(self, node: int) -> list[int]:
        return [other for other in self.addresses if other != node]

    def leader(self) -> int:
        """As a majority confirms."""
        address = self.client.find_leader()
        places = [*self.addresses.items(), *self.known.items()]
        return next(node for node, found in places if found == address)

    def status(self, node: int) -> pb.NodeStatus:
        """As it says itself, over no line."""
        return self.client.of_node(self.addresses[node], "Status", pb.StatusRequest())

    def is_up_to_date(self, node: int) -> bool:
        """Does it follow the leader, or lead, and have nearly everything?"""
        try:
            leading = self.status(self.leader())
            its = self.status(node)
        except grpc.aio.AioRpcError:
            return False  # it does not listen yet
        return its.leader == leading.node and leading.commit - its.applied < MAX_LAG

    def kill(self, node: int) -> None:
        self._processes[node].send_signal(signal.SIGKILL)
        self.wait(node)

    def stop(self, node: int) -> int:
        """In order; its exit code."""
        self._processes[node].send_signal(signal.SIGTERM)
        return self.wait(node)

    def has_ended(self, node: int) -> bool:
        return self._processes[node].poll() is not None

    def wait(self, node: int) -> int:
        process = self._processes.pop(node)
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return code

    def close(self) -> None:
        for node in list(self._processes):
            self.kill(node)


@contextmanager
def nodes(folder: Path, count: int, *, with_doors: bool = False) -> Iterator[CoordinatorNodes]:
    """With doors the network between them, and to their callers, can be broken."""
    folder.mkdir(parents=True, exist_ok=True)
    proof = tokens.load_or_create_tokens(folder / tokens.TOKENS_NAME)
    addresses = {number: f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count), start=1)}
    with ExitStack() as stack:
        doors = stack.enter_context(lines(addresses)) if with_doors else None
        client = stack.enter_context(
            BlockingClient(list(addresses.values()), proof.of(Role.ADMIN), patience_s=PATIENCE_S)
        )
        found = CoordinatorNodes(folder, addresses, client, proof, doors)
        stack.callback(found.close)
        for node in addresses:
            found.start(node)
        found.leader()
        yield found
