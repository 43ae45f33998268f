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
from paceline.coordinator.run_endpoint import Coordinators, TokenFile
from paceline.coordinator.server import tokens
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.partitions import local_ports_of
from paceline.coordinator.server.tokens import Tokens
from paceline.core import environ


@dataclass(frozen=True, slots=True)
class ChunkFate:
    late_s: float = 0.0
    is_lost: bool = False  # with the connection: TCP itself never loses a chunk


@dataclass(slots=True)
class LinkConditions:
    """Each chunk is delayed by `late_s`, some stall for `stall_s`, and some are lost."""

    late_s: tuple[float, float] = (0.0, 0.0)  # from, to
    stall_share: float = 0.0
    stall_s: float = 0.0
    lost_share: float = 0.0
    seed: int = 0
    lost: int = 0  # so far
    stalled: int = 0
    passed: int = 0
    _rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._rng.seed(self.seed)

    def next(self) -> ChunkFate:
        late_s = self._rng.uniform(*self.late_s)
        drawn = self._rng.random()
        if drawn < self.lost_share:
            self.lost += 1
            return ChunkFate(late_s, is_lost=True)
        if drawn < self.lost_share + self.stall_share:
            self.stalled += 1
            return ChunkFate(late_s + self.stall_s)
        self.passed += 1
        return ChunkFate(late_s)


PERFECT_LINK = LinkConditions()


# Nodes and workers call a node through its TCP proxy in this process. A proxy finds the process of a
# connection by its port, so that it can partition some callers and not others. A partitioned connection is
# silent, not closed: bytes sent meanwhile arrive after it is healed, as after retransmission. No root needed.

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
    """Proxy of one node. All methods run in the event loop that opened it."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[int] = set()  # partitioned processes
        self.conditions: LinkConditions = PERFECT_LINK

    async def open(self) -> str:
        """Returns its address."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
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
        for connection in self._connections:
            if connection.port in ports:
                connection.is_open.clear()

    def heal(self) -> None:
        self._refused.clear()
        for connection in self._connections:
            connection.is_open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        connection = _Connection(int(writer.get_extra_info("peername")[1]), [writer])
        self._tasks.add(task)
        self._connections.add(connection)
        if not self._refused or connection.port not in local_ports_of(self._refused):
            connection.is_open.set()
        try:
            await connection.is_open.wait()
            await self._forward(connection, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the node is down, the connection was reset, or the proxy closes
        finally:
            self._tasks.discard(task)
            self._connections.discard(connection)
            for open_writer in connection.writers:
                await _close(open_writer)

    async def _forward(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        connection.writers.append(far_writer)
        directions = (
            asyncio.create_task(self._pump(connection, reader, far_writer)),
            asyncio.create_task(self._pump(connection, far_reader, writer)),
        )
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            fate = self.conditions.next()
            await asyncio.sleep(fate.late_s)
            if fate.is_lost:
                connection.reset()
                return
            await connection.is_open.wait()
            writer.write(data)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # it was reset
        await writer.wait_closed()


@dataclass(slots=True)
class LinkProxies:
    """The proxies of all nodes, for callers without an event loop."""

    addresses: dict[int, str]  # of the proxies, by node
    _proxies: dict[int, TcpProxy]
    _background: Background

    def cut(self, pids: Collection[int], nodes: Collection[int]) -> None:
        """Partition connections from these processes to those nodes."""

        async def do() -> None:
            for node in nodes:
                self._proxies[node].cut(pids)

        self._background.call(do())

    def heal(self) -> None:
        async def do() -> None:
            for proxy in self._proxies.values():
                proxy.heal()

        self._background.call(do())

    def set_conditions(self, conditions: LinkConditions) -> None:
        async def do() -> None:
            for proxy in self._proxies.values():
                proxy.conditions = conditions

        self._background.call(do())


@contextmanager
def link_proxies(targets: Mapping[int, str]) -> Iterator[LinkProxies]:
    background = Background()
    stack = AsyncExitStack()
    proxies = {node: TcpProxy(address) for node, address in targets.items()}

    async def open_all() -> dict[int, str]:
        addresses = {}
        for node, proxy in proxies.items():
            addresses[node] = await proxy.open()
            stack.push_async_callback(proxy.close)
        return addresses

    try:
        yield LinkProxies(background.call(open_all()), proxies, background)
    finally:
        background.call(stack.aclose())
        background.close()


PATIENCE_S = 30.0
MAX_LAG = 10  # entries that may be in flight


@dataclass(slots=True)
class CoordinatorNodes:
    folder: Path
    addresses: dict[int, str]  # where each listens
    client: BlockingClient
    proof: Tokens
    links: LinkProxies | None = None  # only with proxies
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def known(self) -> dict[int, str]:
        """The addresses that callers use."""
        return self.addresses if self.links is None else self.links.addresses

    @property
    def coordinators(self) -> Coordinators:
        return Coordinators(
            addresses=tuple(self.known.values()), credentials=TokenFile(self.folder / tokens.TOKENS_NAME)
        )

    def start(self, node: int) -> None:
        cluster = NodesFile(cluster="lab", nodes=self.known)
        more = ["--token-file", str(self.folder / tokens.TOKENS_NAME), "--stop-with-stdin"]
        command = start_command(
            node,
            cluster,
            str(self.data_dir(node)),
            more,
            listen=None if self.links is None else self.addresses[node],
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
        """The leader that a majority confirms."""
        address = self.client.find_leader()
        places = [*self.addresses.items(), *self.known.items()]
        return next(node for node, known_address in places if known_address == address)

    def status(self, node: int) -> pb.NodeStatus:
        """The node's own status, without a proxy."""
        return self.client.of_node(self.addresses[node], "Status", pb.StatusRequest())

    def is_up_to_date(self, node: int) -> bool:
        """Whether it follows the leader, or leads, with nearly all entries applied."""
        try:
            leading = self.status(self.leader())
            own = self.status(node)
        except grpc.aio.AioRpcError:
            return False  # it does not listen yet
        return own.leader == leading.node and leading.commit - own.applied < MAX_LAG

    def kill(self, node: int) -> None:
        self._processes[node].send_signal(signal.SIGKILL)
        self.wait(node)

    def stop(self, node: int) -> int:
        """Stop it with SIGTERM; returns its exit code."""
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
def nodes(folder: Path, count: int, *, with_proxies: bool = False) -> Iterator[CoordinatorNodes]:
    """Running nodes. With proxies, the network between them and to their callers can be broken."""
    folder.mkdir(parents=True, exist_ok=True)
    proof = tokens.load_or_create_tokens(folder / tokens.TOKENS_NAME)
    addresses = {number: f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count), start=1)}
    with ExitStack() as stack:
        proxies = stack.enter_context(link_proxies(addresses)) if with_proxies else None
        client = stack.enter_context(
            BlockingClient(list(addresses.values()), proof.of(Role.ADMIN), patience_s=PATIENCE_S)
        )
        coordinators = CoordinatorNodes(folder, addresses, client, proof, proxies)
        stack.callback(coordinators.close)
        for node in addresses:
            coordinators.start(node)
        coordinators.leader()
        yield coordinators
