"""Process and TCP probes: /proc/PID/stat, and the kernel's TCP_INFO of each connection.

A process is identified by its pid and start time: a reused pid is a new process, and its CPU share
starts from 0. Without /proc there are no rows.

The kernel measures round trips on every TCP connection by the traffic that is sent anyway, so the
probe sends nothing. It covers all connections of this process: gloo's and NCCL's to other workers,
Paceline's to a parameter server, gRPC's to the coordinator. Shared memory, CUDA and InfiniBand are not
TCP, and not covered.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from paceline.core.clock import monotonic_s
from paceline.core.tcp import ESTABLISHED, SocketId, tcp_sockets
from paceline.events.schema import LinkRow, ProcessRow
from paceline.monitoring.metrics.statistics import median

PROC = Path("/proc")
GONE = ("Z", "X")  # ended, and not yet reaped by its parent
STOPPED = ("T", "t")  # by a signal, or by a debugger
# Indexes of fields in /proc/PID/stat, counted after the command name, which may contain anything.
_STATE = 0
_USER = 11
_SYSTEM = 12
_BEGAN = 19
_PAGES = 21


def has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def is_alive(pid: int) -> bool:
    """True without /proc, since then nothing is known."""
    if not has_proc():
        return True
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[_STATE] not in GONE


class ProcessProbe:
    def __init__(self) -> None:
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._before: dict[int, tuple[str, float, int]] = {}  # start time, seconds and ticks, by pid

    def sample(self, at_ns: int, pids: Mapping[str, int]) -> list[ProcessRow]:
        """Rows of the participants that are alive."""
        rows = []
        current = {}
        for worker, pid in pids.items():
            try:
                text = (PROC / str(pid) / "stat").read_text()
            except OSError:
                continue  # it has ended
            fields = text.rpartition(")")[2].split()
            now_s = monotonic_s()
            ticks = int(fields[_USER]) + int(fields[_SYSTEM])
            current[pid] = (fields[_BEGAN], now_s, ticks)
            share = self._share(self._before.get(pid), current[pid])
            memory = int(fields[_PAGES]) * self._page_bytes
            rows.append(ProcessRow(at_ns, worker, pid, memory, share, fields[_STATE] in STOPPED))
        self._before = current
        return rows

    def _share(self, before: tuple[str, float, int] | None, now: tuple[str, float, int]) -> float:
        """Share of one core since the previous sample."""
        if before is None or before[0] != now[0] or now[1] <= before[1]:
            return 0.0
        return round((now[2] - before[2]) / self._ticks_per_s / (now[1] - before[1]), 4)


class TcpProbe:
    def __init__(self, node: str) -> None:
        self._node = node
        self._known: dict[SocketId, tuple[int, int]] = {}  # segments sent and retransmitted
        self._sent = self._again = 0  # totals, also of connections that are over

    def sample(self, at_ns: int) -> LinkRow | None:
        """None if no connection sent anything since the previous sample."""
        round_trips_s = []
        open_connections = {}
        for key, info in tcp_sockets().items():
            if info.state != ESTABLISHED:
                continue
            sent = info.segments_sent
            again = info.segments_sent_again
            sent_before, again_before = self._known.get(key, (0, 0))
            if sent < sent_before:  # a new connection with the same descriptor and inode
                sent_before = again_before = 0
            open_connections[key] = (sent, again)
            self._sent += sent - sent_before
            self._again += max(0, again - again_before)
            if sent > sent_before and info.round_trip_us:
                round_trips_s.append(info.round_trip_us / 1e6)
        self._known = open_connections
        median_s = median(round_trips_s)
        if median_s is None:
            return None
        return LinkRow(
            at_ns,
            self._node,
            len(round_trips_s),
            round(median_s, 7),
            max(round_trips_s),
            self._sent,
            self._again,
        )
