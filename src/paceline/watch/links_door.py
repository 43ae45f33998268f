"""How long is the way to whom this process talks to, and what gets lost on it? Its kernel knows.

It measures round trips on every TCP connection by what is sent anyway, so nothing is sent for this. Looked at
are all connections of this process, whoever opened them: gloo's and NCCL's to other workers, ours to a
parameter server, gRPC's to the coordinator. Shared memory, CUDA and InfiniBand are no TCP, and not seen.
"""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from paceline.events.sample_rows import LinkRow
from paceline.watch.quantiles import median

FDS = Path("/proc/self/fd")
ESTABLISHED = 1
# struct tcp_info of linux/tcp.h: u8 state …; u32 rtt at 68 (µs), total_retrans at 100; segs_out at 136.
_SIZE = 144
_STATE, _RTT, _AGAIN, _SENT = struct.Struct("=B"), (68, "=I"), (100, "=I"), (136, "=I")


class LinksDoor:
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
        if info is not None and _STATE.unpack_from(info)[0] == ESTABLISHED:
            rtt, again, sent = (struct.unpack_from(kind, info, at)[0] for at, kind in (_RTT, _AGAIN, _SENT))
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
