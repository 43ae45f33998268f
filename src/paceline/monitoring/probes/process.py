"""Process and TCP probes: /proc/PID/stat, and the kernel's TCP_INFO of each connection.

A process is identified by its pid and start time: a reused pid is a new process, and its CPU share
starts from 0. Without /proc there are no rows.

The kernel measures round trips on every TCP connection by the traffic that is sent anyway, so the
probe sends nothing. It covers all connections of this process: gloo's and NCCL's to other workers,
ours to a parameter server, gRPC's to the coordinator. Shared memory, CUDA and InfiniBand are not
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
GONE = ("Z", "X")  # it ended, and whoever began it has not looked yet
STOPPED = ("T", "t")  # by a signal, or by a debugger
# Places in /proc/PID/stat behind the command's name, which may itself hold anything.
_STATE, _USER, _SYSTEM, _BEGAN, _PAGES = 0, 11, 12, 19, 21


def has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def is_alive(pid: int) -> bool:
    """Where there is no /proc, nobody is known to be gone."""
    if not has_proc():
        return True
    try:
        said = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return said.rpartition(")")[2].split()[_STATE] not in GONE


class ProcessProbe:
    def __init__(self) -> None:
        self._ticks_per_s, self._page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._before: dict[int, tuple[str, float, int]] = {}  # by pid: when it began, seconds, ticks

    def look(self, at_ns: int, pids: Mapping[str, int]) -> list[ProcessRow]:
        """Of these participants, those that live."""
        rows, seen = [], {}
        for worker, pid in pids.items():
            try:
                text = (PROC / str(pid) / "stat").read_text()
            except OSError:
                continue  # it has ended
            fields = text.rpartition(")")[2].split()
            now_s, ticks = monotonic_s(), int(fields[_USER]) + int(fields[_SYSTEM])
            seen[pid] = (fields[_BEGAN], now_s, ticks)
            share = self._share(self._before.get(pid), seen[pid])
            memory = int(fields[_PAGES]) * self._page_bytes
            rows.append(ProcessRow(at_ns, worker, pid, memory, share, fields[_STATE] in STOPPED))
        self._before = seen
        return rows

    def _share(self, before: tuple[str, float, int] | None, now: tuple[str, float, int]) -> float:
        """Of one core, since the look before."""
        if before is None or before[0] != now[0] or now[1] <= before[1]:
            return 0.0
        return round((now[2] - before[2]) / self._ticks_per_s / (now[1] - before[1]), 4)


# It measures round trips on every TCP connection by what is sent anyway, so nothing is sent for this. Looked
# at are all connections of this process, whoever opened them: gloo's and NCCL's to other workers, ours to a
# parameter server, gRPC's to the coordinator. Shared memory, CUDA and InfiniBand are no TCP, and not seen.

FDS = Path("/proc/self/fd")
ESTABLISHED = 1
# struct tcp_info of linux/tcp.h: u8 state …; u32 rtt at 68 (µs), total_retrans at 100; segs_out at 136.
_SIZE = 144
_TCP_STATE, _RTT, _RETRANSMITS, _SENT = struct.Struct("=B"), (68, "=I"), (100, "=I"), (136, "=I")


class TcpProbe:
    def __init__(self, node: str) -> None:
        self._node = node
        self._known: dict[tuple[int, str], tuple[int, int]] = {}  # by connection: segments sent, and again
        self._sent = self._again = 0  # totals, also of connections that are over

    def look(self, at_ns: int) -> LinkRow | None:
        """None where nothing was sent by any connection since the look before."""
        trips, still = [], {}
        for key, rtt_us, sent, again in _connections():
            sent_before, again_before = self._known.get(key, (0, 0))
            if sent < sent_before:  # another connection by the same number and name
                sent_before = again_before = 0
            still[key] = (sent, again)
            self._sent += sent - sent_before
            self._again += max(0, again - again_before)
            if sent > sent_before and rtt_us:
                trips.append(rtt_us / 1e6)
        self._known = still
        middle = median(trips)
        if middle is None:
            return None
        return LinkRow(at_ns, self._node, len(trips), round(middle, 7), max(trips), self._sent, self._again)


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
        return  # no /proc: nothing is known
    for path in list(FDS.iterdir()):
        try:
            target = str(path.readlink())
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:"):
            yield int(path.name), target


def _tcp_info(fd: int) -> bytes | None:
    """None: it is no TCP connection, or closed by now. The socket is somebody else's, and stays open."""
    try:
        found = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
            return None
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
        return info if len(info) == _SIZE else None
    except OSError:
        return None
    finally:
        found.detach()
