"""How is the network between processes of one machine broken? By a door in front of every node.

Everybody who calls a node, other nodes and workers alike, calls its door: a TCP
proxy in this process that passes bytes on. A door knows which process a
connection comes from, so it can be cut for some callers and not for others. A
cut line is silent, not closed: what was said meanwhile arrives when it is
mended, as from a network that lost it and sent it again. Nobody needs root.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from paceline.app.lab.weather import CLEAR, Weather
from paceline.coordinator.background import Background
from paceline.coordinator.shell.callers import ports_of

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class _Line:
    """One connection from a caller to a node."""

    port: int  # the caller's
    writers: list[asyncio.StreamWriter]
    is_open: asyncio.Event = field(default_factory=asyncio.Event)  # bytes pass

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Door:
    """In front of one node. All its methods run in the loop that it was opened in."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[int] = set()  # processes whose lines are cut
        self.weather: Weather = CLEAR

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
        ports = ports_of(self._refused)
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
        line = _Line(int(writer.get_extra_info("peername")[1]), [writer])
        self._tasks.add(task)
        self._lines.add(line)
        if not self._refused or line.port not in ports_of(self._refused):
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

    async def _pass_on(self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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

    async def _pump(self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
class Lines:
    """The doors of all nodes, for callers without an event loop."""

    addresses: dict[int, str]  # of the doors, by node
    _doors: dict[int, Door]
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

    def set_weather(self, weather: Weather) -> None:
        async def do() -> None:
            for door in self._doors.values():
                door.weather = weather

        self._background.call(do())


@contextmanager
def lines(targets: Mapping[int, str]) -> Iterator[Lines]:
    background, stack = Background(), AsyncExitStack()
    doors = {node: Door(address) for node, address in targets.items()}

    async def open_all() -> dict[int, str]:
        found = {}
        for node, door in doors.items():
            found[node] = await door.open()
            stack.push_async_callback(door.close)
        return found

    try:
        yield Lines(background.call(open_all()), doors, background)
    finally:
        background.call(stack.aclose())
        background.close()
