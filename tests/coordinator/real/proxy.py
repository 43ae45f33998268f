"""TCP proxy that can stop forwarding, in one or both directions.

A partitioned link is silent, not closed: bytes sent meanwhile arrive when it heals, as they would
from a network that lost and resent them.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.coordinator.real.cluster import Cluster


class Proxy:
    """`async with Proxy(listen, target) as line:`; both are HOST:PORT."""

    def __init__(self, listen: str, target: str) -> None:
        self.listen, self._target = listen, target
        self._there, self._back = asyncio.Event(), asyncio.Event()  # set: bytes pass
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.heal()

    async def __aenter__(self) -> Self:
        host, _, port = self.listen.rpartition(":")
        self._server = await asyncio.start_server(self._connected, host, int(port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def partition(self, *, there: bool = True, back: bool = True) -> None:
        """From the side that calls to the side that is called, and the other way."""
        if there:
            self._there.clear()
        if back:
            self._back.clear()

    def heal(self) -> None:
        self._there.set()
        self._back.set()

    def reset(self) -> None:
        """Close every connection at once; what was on its way is lost."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._connections.add(task)
        self._writers.add(writer)
        try:
            # A link that is cut in either direction accepts no connection.
            await self._there.wait()
            await self._back.wait()
            await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the other side is not there, or the test is over
        finally:
            self._connections.discard(task)
            await self._close(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers.add(far_writer)
        ways = (
            asyncio.create_task(_pump(reader, far_writer, self._there)),
            asyncio.create_task(_pump(far_reader, writer, self._back)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await self._close(far_writer)

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()
        with suppress(OSError):  # it was reset
            await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    while data := await reader.read(1 << 16):
        await gate.wait()
        writer.write(data)
        await writer.drain()


class ProxiedCluster(Cluster):
    """A proxy on every line between two nodes. Clients reach every node without one."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        super().__init__(folder, nodes)
        host = self.addresses[1].rpartition(":")[0]
        self._lines = AsyncExitStack()
        self.lines = {
            (a, b): Proxy(f"{host}:{7500 + 10 * a + b}", self.addresses[b])
            for a in self.addresses
            for b in self.addresses
            if a != b
        }

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for line in self.lines.values():
                await stack.enter_async_context(line)
            await super().__aenter__()
            self._lines = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self._lines.aclose()

    def peers(self, node: int) -> Mapping[int, str]:
        lines = {b: line.listen for (a, b), line in self.lines.items() if a == node}
        return {node: self.addresses[node], **lines}

    def silence(self, speakers: list[int], listeners: list[int]) -> None:
        """Nothing that these say reaches those any more; the other way stays as it is."""
        for a in speakers:
            for b in listeners:
                self.lines[a, b].partition(back=False)
                self.lines[b, a].partition(there=False)

    def heal(self) -> None:
        for line in self.lines.values():
            line.heal()
