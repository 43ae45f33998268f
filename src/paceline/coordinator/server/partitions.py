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
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):  # a machine without IPv6
            for row in Path(table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _sockets_of(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


MAX_PARTITION_S = 300.0
_NEVER_PARTITIONED = ("Nodes", "Raft")  # for Raft, the sender drops single messages


@dataclass(slots=True)
class _Partition:
    nodes: frozenset[NodeId]
    pids: frozenset[int]
    others: bool  # partition all processes but those in `pids`
    until_s: float
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    is_held: dict[str, bool] = field(default_factory=dict)  # by connection


class Partitions:
    def __init__(self, ports: Callable[[Collection[int]], set[int]] = local_ports_of) -> None:
        self._ports = ports
        self._partition: _Partition | None = None

    def partition(
        self, for_s: float, *, nodes: Collection[NodeId] = (), pids: Collection[int] = (), others: bool
    ) -> None:
        """Start a partition now; it replaces an earlier one."""
        assert 0 < for_s <= MAX_PARTITION_S, "the service checks the duration"
        self.heal()
        partition = _Partition(frozenset(nodes), frozenset(pids), others, monotonic_s() + for_s)
        partition.timer = asyncio.get_running_loop().call_later(for_s, self._heal, partition)
        self._partition = partition

    def heal(self) -> None:
        if self._partition is not None:
            self._heal(self._partition)

    @property
    def is_active(self) -> bool:
        return self._partition is not None

    def remaining_s(self) -> float:
        """Seconds until the partition heals; 0 without one."""
        return 0.0 if self._partition is None else max(0.001, self._partition.until_s - monotonic_s())

    def drops(self, other: NodeId) -> bool:
        """Whether messages between this node and that one are dropped."""
        return self._partition is not None and other in self._partition.nodes

    async def wait_until_healed(self, peer: str, method: str) -> None:
        """Return at once, or when the partition that holds this caller heals."""
        while (partition := self._partition) is not None and self._is_partitioned(partition, peer, method):
            await partition.is_over.wait()

    def _is_partitioned(self, partition: _Partition, peer: str, method: str) -> bool:
        if (
            not (partition.pids or partition.others)
            or method.rpartition("/")[0].rpartition(".")[2] in _NEVER_PARTITIONED
        ):
            return False
        if peer not in partition.is_held:  # a connection never changes its process
            port = peer.rpartition(":")[2]
            is_named = port.isdecimal() and int(port) in self._ports(partition.pids)
            partition.is_held[peer] = is_named is not partition.others
        return partition.is_held[peer]

    def _heal(self, partition: _Partition) -> None:
        if partition.timer is not None:
            partition.timer.cancel()
        partition.is_over.set()
        if self._partition is partition:
            self._partition = None
