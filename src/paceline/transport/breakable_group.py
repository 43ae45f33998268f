"""How does somebody stop waiting in a collective of gloo's when the others are gone? Its connections are cut.

A process that is killed closes its own, and whoever waits for it sees that at
once. One that is frozen does not, and neither does one that left in good order
while something still refers to its group. gloo's own abort does nothing, so the sockets
are shut down: every operation on them then fails, in this process and at the other ends.
"""

import os
import socket
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from paceline.ids import Rank
from paceline.transport.torch_dist import join_group, leave_group

JOIN_S = 10.0  # everybody was there a moment ago


class BreakableGroup:
    """The default process group of this process, over gloo, until it is left or broken."""

    def __init__(self, store_path: str, rank: Rank, world_size: int, timeout_s: float) -> None:
        self._sockets: set[tuple[int, int]] = set()
        before = _sockets()
        wait_s = min(JOIN_S, timeout_s)
        try:
            join_group("gloo", store_path=store_path, rank=rank, world_size=world_size, timeout_s=wait_s)
            dist.all_reduce(torch.zeros(1))  # everybody is connected
            _set_pg_timeout(timedelta(seconds=timeout_s))
        except BaseException:
            leave_group()
            raise
        # What another thread opens meanwhile is taken for ours too: the coordinator's client connects again.
        self._sockets = _sockets() - before

    def cut(self) -> None:
        """From any thread: whoever waits in the group, here or elsewhere, gets an error."""
        for fd, inode in self._sockets:
            try:
                if os.fstat(fd).st_ino == inode:  # else it was closed, and the number is another's by now
                    with socket.socket(fileno=os.dup(fd)) as one:
                        one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other end was faster
        self._sockets = set()

    def leave(self) -> None:
        self._sockets = set()
        leave_group()


def is_lost_peer(error: RuntimeError) -> bool:
    """Does this error of torch's say that somebody in the group is gone, or does not answer?"""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _sockets() -> set[tuple[int, int]]:
    """(descriptor, inode) of every connection of this process. Cutting what only listens would kill gloo."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        fd = int(path.name)
        try:
            with socket.socket(fileno=os.dup(fd)) as one:
                is_inet = one.family in (socket.AF_INET, socket.AF_INET6)
                if is_inet and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add((fd, os.fstat(fd).st_ino))
        except OSError:
            continue  # no socket, or closed meanwhile
    return found
