"""How does a worker get out of a process group of gloo's whose others are gone? By cutting its connections.

A process that is killed closes its own, and whoever waits for it sees that at
once. One that is frozen does not, nor does one that left while something
still refers to its group. gloo's own abort does nothing, so the sockets are
shut for reading: gloo takes that for an end, and every operation on them fails.

Only for reading, and nothing is closed yet: gloo forgets a send that finds its
socket shut, here or at the other end, and would wait for it until the timeout.
The others hear that the generation is over as we do, and get out in the same way.
Connecting cannot be cut, so a thread does it, and is left to itself if the generation ends meanwhile.
"""

import os
import queue
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, ProcessGroupGloo

from paceline.clock import monotonic_s
from paceline.errors import PeerLostError
from paceline.ids import Rank
from paceline.transport.torch_dist import leave_group

JOIN_S = 10.0  # everybody was there a moment ago
LOOK_S = 0.005
_READY = "paceline_gloo"  # torch's name for a group that is connected already
_connected: list[ProcessGroupGloo] = []
# Connections that were cut: long enough for whoever was frozen to wake and to hear what became of its group.
KEPT_S, MOST_KEPT = 60.0, 8
_kept: deque[tuple[float, list[socket.socket]]] = deque()


class BreakableGroup:
    """The default process group of this process, until it is left or broken."""

    def __init__(
        self, store_path: str, rank: Rank, world_size: int, timeout_s: float, is_over: Callable[[], bool]
    ) -> None:
        before = _sockets()
        group = _connect(store_path, rank, world_size, timeout_s, is_over)
        # What another thread opens meanwhile is taken for ours too: the coordinator's client connects again.
        self._sockets = _sockets() - before
        _make_default(group, rank, world_size, timeout_s)

    def cut(self) -> None:
        """From any thread: whoever waits in the group here gets an error."""
        sockets, self._sockets = self._sockets, set()
        kept = [one for fd, inode in sockets if (one := _shut(fd, inode)) is not None]
        if kept:  # whoever cuts twice keeps nothing more
            _kept.append((monotonic_s(), kept))
        _close_old()

    def leave(self) -> None:
        self._sockets = set()
        leave_group()


def is_lost_peer(error: RuntimeError) -> bool:
    """Does this error of torch's say that somebody in the group is gone, or does not answer?"""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in text or "wait timeout" in text


def _connect(
    path: str, rank: Rank, world_size: int, timeout_s: float, is_over: Callable[[], bool]
) -> ProcessGroupGloo:
    answers: queue.SimpleQueue[ProcessGroupGloo | Exception] = queue.SimpleQueue()

    def connect() -> None:
        try:
            store = FileStore(path, world_size)
            store.set_timeout(timedelta(seconds=min(JOIN_S, timeout_s)))
            answers.put(ProcessGroupGloo(store, rank, world_size, timedelta(seconds=timeout_s)))
        except Exception as error:  # also a full disk: it is raised where somebody waits
            answers.put(error)

    threading.Thread(target=connect, name="connecting", daemon=True).start()
    while True:
        try:
            found = answers.get(timeout=LOOK_S)
        except queue.Empty:
            if is_over():
                what = "the generation ended while its workers were connecting"
                raise PeerLostError(what, "the run goes on in the next one") from None
            continue
        if isinstance(found, Exception):
            raise found
        return found


def _make_default(group: ProcessGroupGloo, rank: Rank, world_size: int, timeout_s: float) -> None:
    """torch makes its default group itself; we tell it of a kind of group that is made already."""
    if _READY not in dist.Backend.backend_list:
        dist.Backend.register_backend(_READY, lambda *_: _connected.pop(), devices=["cpu"])
    _connected.append(group)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(_READY, store=HashStore(), rank=rank, world_size=world_size, timeout=timeout)


def _sockets() -> set[tuple[int, int]]:
    """(descriptor, inode) of every connection of this process. Cutting what only listens would kill gloo."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        fd = int(path.name)
        try:
            about = os.fstat(fd)
            if not stat.S_ISSOCK(about.st_mode):
                continue
            with _opened(fd) as one:
                is_inet = one.family in (socket.AF_INET, socket.AF_INET6)
                if is_inet and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add((fd, about.st_ino))
        except OSError:
            continue  # closed meanwhile
    return found


def _shut(fd: int, inode: int) -> socket.socket | None:
    """Nothing more is read from it. What is returned keeps the connection after gloo has closed its end."""
    try:
        one = _opened(fd)
    except OSError:
        return None  # closed meanwhile
    try:
        if os.fstat(one.fileno()).st_ino == inode:  # else the number is another's by now
            one.shutdown(socket.SHUT_RD)
            return one
    except OSError:
        pass  # the other end has gone
    one.close()
    return None


def _close_old() -> None:
    while _kept and (len(_kept) > MOST_KEPT or monotonic_s() - _kept[0][0] > KEPT_S):
        for one in _kept.popleft()[1]:
            one.close()


def _opened(fd: int) -> socket.socket:
    """The same socket under a number of our own."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
