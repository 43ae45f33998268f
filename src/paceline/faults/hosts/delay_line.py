"""A program that delays the packets towards a host, where the kernel has no netem.

`python -m paceline.faults.hosts.delay_line DELAY_S JITTER_S` on a host prints `ready` and serves the
iptables queue 1. The kernel holds the packets and sends only their numbers; each is accepted when its
time has come, in the order of arrival, so that jitter does not reorder. When this program ends, the rule's
`--queue-bypass` lets packets pass. The messages are those of linux/netfilter/nfnetlink_queue.h.
"""

import random
import select
import socket
import struct
import sys
import time
from collections import deque

QUEUE = 1
MAX_PACKETS = 100_000
_NETLINK_NETFILTER = 12
_REQUEST = 1
_ACKNOWLEDGE = 4
_ERROR = 2  # the type of an answer
_PACKET = 3 << 8
_CONFIG = 3 << 8 | 2
_BATCH_VERDICT = 3 << 8 | 3
_ACCEPT = 1
# Attributes of a configuration, a packet and a verdict.
_COMMAND = 1
_COPY = 2
_MAX_LENGTH = 3
_MASK = 4
_FLAGS = 5
_PACKET_HEADER = 1
_VERDICT_HEADER = 2
_BIND = 1
_COPY_META = 1
_WHOLE_SEGMENTS = 4  # large packets are not split


def main(delay_s: float, jitter_s: float) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as queue:
        queue.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
        queue.bind((0, 0))
        _configure(queue, _attribute(_COMMAND, struct.pack("!BBH", _BIND, 0, socket.AF_INET)))
        _configure(queue, _attribute(_COPY, struct.pack("!IB", 0, _COPY_META)))
        _configure(queue, _attribute(_MAX_LENGTH, struct.pack("!I", MAX_PACKETS)))
        flags = struct.pack("!I", _WHOLE_SEGMENTS)
        _configure(queue, _attribute(_FLAGS, flags) + _attribute(_MASK, flags))
        print("ready", flush=True)
        _serve(queue, delay_s, jitter_s)


def _serve(queue: socket.socket, delay_s: float, jitter_s: float) -> None:
    held: deque[tuple[float, int]] = deque()  # when each may pass, and its number
    last_s = 0.0
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        readable, _, _ = select.select([queue], [], [], wait_s)
        now_s = time.monotonic()
        if readable:
            for number in _packets(queue.recv(1 << 16)):
                due_s = now_s + max(0.0, delay_s + random.uniform(-jitter_s, jitter_s))
                last_s = max(last_s, due_s)
                held.append((last_s, number))
        accepted = None
        while held and held[0][0] <= now_s:
            accepted = held.popleft()[1]
        if accepted is not None:  # and all before it
            header = _attribute(_VERDICT_HEADER, struct.pack("!II", _ACCEPT, accepted))
            queue.send(_message(_BATCH_VERDICT, _REQUEST, header))


def _configure(queue: socket.socket, attributes: bytes) -> None:
    queue.send(_message(_CONFIG, _REQUEST | _ACKNOWLEDGE, attributes))
    answer = queue.recv(1 << 16)
    kind = struct.unpack_from("=H", answer, 4)[0]
    code = struct.unpack_from("=i", answer, 16)[0]
    if kind == _ERROR and code != 0:
        raise OSError(-code, f"the kernel refuses to queue packets: error {-code}")


def _message(kind: int, flags: int, attributes: bytes) -> bytes:
    body = struct.pack("!BBH", socket.AF_UNSPEC, 0, QUEUE) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


def _attribute(kind: int, data: bytes) -> bytes:
    padding = b"\0" * (-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), kind) + data + padding


def _packets(data: bytes) -> list[int]:
    """The numbers of the packets in messages of the kernel."""
    numbers = []
    start = 0
    while start + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, start)
        if kind == _PACKET:
            numbers.append(_packet_number(data[start + 20 : start + length]))
        start += (length + 3) & ~3
    return numbers


def _packet_number(attributes: bytes) -> int:
    start = 0
    while start + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, start)
        if kind & 0x3FFF == _PACKET_HEADER:
            return int(struct.unpack_from("!I", attributes, start + 4)[0])
        start += (length + 3) & ~3
    raise AssertionError("a packet has a number")


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
