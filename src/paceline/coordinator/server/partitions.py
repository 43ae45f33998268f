"""Injected partitions: ignore given peers and clients until a deadline (fault injection).

A partition is silence, not an error: messages between nodes are dropped, and calls of clients
wait; they are received and answered when the partition heals. The node heals it by its own
clock, so it never outlasts its duration, even if the process that requested it is gone. Calls to
the service Nodes always pass, so that a partitioned node can still be inspected.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.coordinator.raft.types import NodeId
from paceline.core.clock import monotonic_s


def local_ports_of(pids: Collection[int]) -> set[int]:
    """The local TCP ports of these processes."""
    inodes = {inode for pid in pids for inode in _sockets_of(pid)}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):  # a machine without IPv6
            for row in Path(table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[9] in inodes:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def _sockets_of(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


MAX_PARTITION_S = 300.0
_NEVER_PARTITIONED = ("Nodes", "Raft")  # of the latter single messages are dropped, by their sender


@dataclass(slots=True)
class _Partition:
    nodes: frozenset[NodeId]
    pids: frozenset[int]
    others: bool  # all but those processes are cut off
    until_s: float
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    known: dict[str, bool] = field(default_factory=dict)  # by connection: is it cut?


class Partitions:
    def __init__(self, ports: Callable[[Collection[int]], set[int]] = local_ports_of) -> None:
        self._ports = ports
        self._cut: _Partition | None = None

    def cut(
        self, for_s: float, *, nodes: Collection[NodeId] = (), pids: Collection[int] = (), others: bool
    ) -> None:
        """From now on, in the place of what was cut before."""
        assert 0 < for_s <= MAX_PARTITION_S, "whoever asks is told"
        self.mend()
        cut = _Partition(frozenset(nodes), frozenset(pids), others, monotonic_s() + for_s)
        cut.timer = asyncio.get_running_loop().call_later(for_s, self._mend, cut)
        self._cut = cut

    def mend(self) -> None:
        if self._cut is not None:
            self._mend(self._cut)

    @property
    def are_some(self) -> bool:
        return self._cut is not None

    def left_s(self) -> float:
        """0: nothing is cut."""
        return 0.0 if self._cut is None else max(0.001, self._cut.until_s - monotonic_s())

    def drops(self, other: NodeId) -> bool:
        """Do no messages pass between this node and that one?"""
        return self._cut is not None and other in self._cut.nodes

    async def until_heard(self, peer: str, method: str) -> None:
        """A call from there goes on at once, or when what cuts it off is mended."""
        while (cut := self._cut) is not None and self._is_cut(cut, peer, method):
            await cut.is_over.wait()

    def _is_cut(self, cut: _Partition, peer: str, method: str) -> bool:
        if not (cut.pids or cut.others) or method.rpartition("/")[0].rpartition(".")[2] in _NEVER_PARTITIONED:
            return False
        if peer not in cut.known:  # a connection stays its process's
            port = peer.rpartition(":")[2]
            is_named = port.isdecimal() and int(port) in self._ports(cut.pids)
            cut.known[peer] = is_named is not cut.others
        return cut.known[peer]

    def _mend(self, cut: _Partition) -> None:
        if cut.timer is not None:
            cut.timer.cancel()
        cut.is_over.set()
        if self._cut is cut:
            self._cut = None
