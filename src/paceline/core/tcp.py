"""TCP connections of this process, and what the kernel counts on each (struct tcp_info of linux/tcp.h).

The sockets belong to other code (gloo, NCCL, gRPC) and are only read. Without /proc there are none.
`SocketBytes` counts the bytes on the wire of the connections that a block of code opens.
"""

import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

FDS = Path("/proc/self/fd")
ESTABLISHED = 1
_LISTEN = 10
# u8 state at 0; u32 rtt (µs) at 68, total_retrans at 100; u64 bytes_received at 128; u32 segs_out at 136;
# u64 bytes_sent at 200, with retransmissions, and bytes_retrans at 208 (Linux 4.19).
_LEAST = 144
_SIZE = 216


class SocketId(NamedTuple):
    """The inode tells a socket from a later one with the same descriptor."""

    fd: int
    inode: int


class TcpInfo(NamedTuple):
    state: int
    round_trip_us: int
    segments_sent: int
    segments_sent_again: int
    bytes_sent: int | None  # without retransmissions; None: an older kernel
    bytes_received: int


def tcp_sockets() -> dict[SocketId, TcpInfo]:
    """Every TCP connection of this process; listeners are left out."""
    found = {}
    if not FDS.exists():
        return {}
    for path in list(FDS.iterdir()):
        fd = int(path.name)
        try:
            status = os.fstat(fd)
        except OSError:
            continue  # closed meanwhile
        if stat.S_ISSOCK(status.st_mode) and (info := _tcp_info(fd)) is not None and info.state != _LISTEN:
            found[SocketId(fd, status.st_ino)] = info
    return found


def _tcp_info(fd: int) -> TcpInfo | None:
    """None: not a TCP socket, or closed by now."""
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
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
        return None
    finally:
        connection.detach()
    if len(data) < _LEAST:
        return None
    sent, again = struct.unpack_from("=QQ", data, 200) if len(data) >= _SIZE else (None, 0)
    return TcpInfo(
        state=data[0],
        round_trip_us=struct.unpack_from("=I", data, 68)[0],
        segments_sent=struct.unpack_from("=I", data, 136)[0],
        segments_sent_again=struct.unpack_from("=I", data, 100)[0],
        bytes_sent=None if sent is None else sent - again,
        bytes_received=struct.unpack_from("=Q", data, 128)[0],
    )


@dataclass(frozen=True, slots=True)
class WireBytes:
    sent: int
    received: int


class SocketBytes:
    """Bytes on the wire of the connections that were opened since this object was made.

    `begin` is called once they are open; connections that other threads open meanwhile are included.
    """

    def __init__(self) -> None:
        self._before = set(tcp_sockets())
        self._counted: dict[SocketId, TcpInfo] = {}

    def begin(self) -> None:
        opened = tcp_sockets()
        self._counted = {each: info for each, info in opened.items() if each not in self._before}

    def total(self) -> WireBytes | None:
        """None: no connection was opened, one has been closed, or the kernel does not count bytes."""
        now = tcp_sockets()
        infos = [now.get(each) for each in self._counted]
        if not infos:
            return None
        sent = received = 0
        for info in infos:
            if info is None or info.bytes_sent is None:
                return None
            sent += info.bytes_sent
            received += info.bytes_received
        return WireBytes(sent, received)
