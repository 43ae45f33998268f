"""Process and TCP probes: /proc/PID/stat, and the kernel's TCP_INFO of each connection.

A process is identified by its pid and start time: a reused pid is a new process, and its CPU share
starts from 0. Without /proc there are no rows.

The kernel measures round trips on every TCP connection by the traffic that is sent anyway, so the
probe sends nothing. It covers all connections of this process: gloo's and NCCL's to other workers,
Paceline's to a parameter server, gRPC's to the coordinator. Shared memory, CUDA and InfiniBand are not
TCP, and not covered.
"""

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.core.clock import monotonic_s
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


FDS = Path("/proc/self/fd")
ESTABLISHED = 1
# struct tcp_info of linux/tcp.h: u8 state …; u32 rtt at 68 (µs), total_retrans at 100; segs_out at 136.
_SIZE = 144
_TCP_STATE = struct.Struct("=B")
_RTT = (68, "=I")
_RETRANSMITS = (100, "=I")
_SENT = (136, "=I")


class TcpProbe:
    def __init__(self, node: str) -> None:
        self._node = node
        self._known: dict[tuple[int, str], tuple[int, int]] = {}  # segments sent and retransmitted
        self._sent = self._again = 0  # totals, also of connections that are over

    def sample(self, at_ns: int) -> LinkRow | None:
        """None if no connection sent anything since the previous sample."""
        round_trips_s = []
        open_connections = {}
        for key, rtt_us, sent, again in _connections():
            sent_before, again_before = self._known.get(key, (0, 0))
            if sent < sent_before:  # a new connection with the same descriptor and inode
                sent_before = again_before = 0
            open_connections[key] = (sent, again)
            self._sent += sent - sent_before
            self._again += max(0, again - again_before)
            if sent > sent_before and rtt_us:
                round_trips_s.append(rtt_us / 1e6)
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


def _connections() -> Iterator[tuple[tuple[int, str], int, int, int]]:
    """(which, round trip in µs, segments sent, segments sent again) of each that is open."""
    for fd, inode in _sockets():
        info = _tcp_info(fd)
        if info is not None and _TCP_STATE.unpack_from(info)[0] == ESTABLISHED:
            rtt, again, sent = (
                struct.unpack_from(kind, info, at)[0] for at, kind in (_RTT, _RETRANSMITS, _SENT)
            )
            yield (fd, inode), rtt, sent, again


def _sockets() -> Iterator[tuple[int, str]]:
    if not FDS.exists():
        return  # no /proc
    for path in list(FDS.iterdir()):
        try:
            target = str(path.readlink())
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:"):
            yield int(path.name), target


def _tcp_info(fd: int) -> bytes | None:
    """None: not a TCP connection, or closed by now. The socket belongs to other code, and stays open."""
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if (
            connection.family not in (socket.AF_INET, socket.AF_INET6)
            or connection.type != socket.SOCK_STREAM
        ):
            return None
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
        return info if len(info) == _SIZE else None
    except OSError:
        return None
    finally:
        connection.detach()
