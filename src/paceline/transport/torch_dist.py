"""torch.distributed transport: collectives over gloo or NCCL, and a gloo group that can be aborted.

`TorchCollective` works on any number of hosts. The ring moves 2(N-1)/N of the vector
per rank in each direction, which the byte counters report.

`AbortableGroup` (elastic runs): a killed process closes its sockets, and its peers
get an error at once. A frozen process does not, nor does one that left while
something still refers to its group. gloo's own abort does nothing, so the group's
sockets are shut for reading: gloo takes that for an end of file, and every operation
on them fails. They are shut only for reading, and closed later: gloo forgets a send
that finds its socket shut, at either end, and would wait for it until the timeout.
The peers learn of the generation's end in the same way and shut their own. Connecting
cannot be interrupted, so a thread does it, and is abandoned if the generation ends
meanwhile.
"""

import os
import queue
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, HashStore, ProcessGroupGloo, Store

from paceline.core.clock import Clock, monotonic_s
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.ports import Traffic


def join_group(
    backend: str,
    *,
    store_path: str,
    rank: Rank,
    world_size: int,
    timeout_s: float,
    store: Store | None = None,
) -> None:
    """Make the default process group of this process, meeting in a store, or through a file on this host."""
    dist.init_process_group(
        backend,
        store=FileStore(store_path, world_size) if store is None else store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )


STOP_POLL_EVERY = 16  # steps between two questions whether to stop, where the wish cannot ride along


def should_poll_stop(step: int, total: int) -> bool:
    return (step + 1) % STOP_POLL_EVERY == 0 and step + 1 < total


def agree_to_stop(wants_stop: bool, device: torch.device) -> bool:
    """Does anybody want to?"""
    wish = torch.tensor([float(wants_stop)], device=device)
    dist.all_reduce(wish)
    return bool(wish.item() > 0)


def wait_for_all() -> None:
    """Until every rank is here. (torch's own barrier wants to know what kind of group it is.)"""
    dist.all_reduce(torch.zeros(1))


def leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def abandon_group() -> None:
    """Let go of the others at once, whatever is under way: they must not wait for us until their timeout."""
    if dist.is_initialized():
        dist.distributed_c10d._get_default_group().abort()
        dist.destroy_process_group()


class TorchCollective:
    def __init__(self, *, device: torch.device, clock: Clock, timeout_s: float) -> None:
        self.rank = Rank(dist.get_rank())
        self.world_size = dist.get_world_size()
        self._device = device
        self._clock = clock
        self._timeout_s = timeout_s

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self._device)

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        started_ns = self._clock.now_ns()
        with _lost_peer_is_an_error(self._timeout_s):
            dist.all_reduce(vector)
        # gloo gives no way to tell waiting from moving; all of it counts as waiting for others.
        wait_ns = self._clock.now_ns() - started_ns
        vector.div_(self.world_size)
        size = ring_bytes(vector.nbytes, self.world_size)
        return Traffic(size, size, wait_ns)

    def broadcast(self, vector: Tensor) -> Traffic:
        with _lost_peer_is_an_error(self._timeout_s):
            dist.broadcast(vector, src=0)
        if self.rank != 0:
            return Traffic(0, vector.nbytes, 0)
        return Traffic(vector.nbytes * (self.world_size - 1), 0, 0)

    def gather(
        self,
        vector: Tensor,
        sources: Sequence[Rank] | None = None,
        targets: Sequence[Rank] | None = None,
    ) -> tuple[list[Tensor], Traffic]:
        if sources is not None:
            return self._gather_from(vector, sources, sources if targets is None else targets)
        copies = [torch.empty_like(vector) for _ in range(self.world_size)]
        started_ns = self._clock.now_ns()
        with _lost_peer_is_an_error(self._timeout_s):
            dist.all_gather(copies, vector)
        moved = vector.nbytes * (self.world_size - 1)
        return copies, Traffic(moved, moved, self._clock.now_ns() - started_ns)

    def _gather_from(
        self, vector: Tensor, sources: Sequence[Rank], targets: Sequence[Rank]
    ) -> tuple[list[Tensor], Traffic]:
        heard = [rank for rank in sources if rank != self.rank]
        hearing = [rank for rank in targets if rank != self.rank]
        started_ns = self._clock.now_ns()
        # gloo sends between two ranks from the processor's memory only.
        sent = vector.cpu() if dist.get_backend() == "gloo" else vector
        places = {rank: torch.empty_like(sent) for rank in heard}
        sends = [dist.P2POp(dist.isend, sent, rank) for rank in hearing]
        receives = [dist.P2POp(dist.irecv, place, rank) for rank, place in places.items()]
        with _lost_peer_is_an_error(self._timeout_s):
            for work in dist.batch_isend_irecv(sends + receives) if sends or receives else []:
                work.wait()
        wait_ns = self._clock.now_ns() - started_ns
        copies = [vector.clone() if rank == self.rank else places[rank].to(vector.device) for rank in sources]
        return copies, Traffic(vector.nbytes * len(hearing), vector.nbytes * len(heard), wait_ns)

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        assert vector.numel() % self.world_size == 0, "a swapped vector divides by the number of ranks"
        received = torch.empty_like(vector)
        started_ns = self._clock.now_ns()
        with _lost_peer_is_an_error(self._timeout_s):
            dist.all_to_all_single(received, vector)
        moved = vector.nbytes - vector.nbytes // self.world_size
        return received, Traffic(moved, moved, self._clock.now_ns() - started_ns)

    def close(self) -> None:
        leave_group()


def ring_bytes(payload_bytes: int, world_size: int) -> int:
    """What each rank of a ring all-reduce sends, and also receives."""
    return 2 * (world_size - 1) * payload_bytes // world_size


class _lost_peer_is_an_error:  # noqa: N801 - reads as a statement where it is used
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            raise PeerLostError(
                f"a collective over torch.distributed failed: {str(error).splitlines()[0]}",
                f"another worker died, or did not answer within {self._timeout_s:g} s; see its log",
            ) from error


# A process that is killed closes its own, and whoever waits for it sees that at
# once. One that is frozen does not, nor does one that left while something
# still refers to its group. gloo's own abort does nothing, so the sockets are
# shut for reading: gloo takes that for an end, and every operation on them fails.
#
# Only for reading, and nothing is closed yet: gloo forgets a send that finds its
# socket shut, here or at the other end, and would wait for it until the timeout.
# The others hear that the generation is over as we do, and get out in the same way.
# Connecting cannot be cut, so a thread does it, and is left to itself if the generation ends meanwhile.

JOIN_S = 10.0  # everybody was there a moment ago
POLL_S = 0.005
_READY = "paceline_gloo"  # torch's name for a group that is connected already
_connected: list[ProcessGroupGloo] = []
# Connections that were cut: long enough for whoever was frozen to wake and to hear what became of its group.
KEPT_S = 60.0
MAX_KEPT = 8
_kept: deque[tuple[float, list[socket.socket]]] = deque()


class AbortableGroup:
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
        sockets = self._sockets
        self._sockets = set()
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
            found = answers.get(timeout=POLL_S)
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
    while _kept and (len(_kept) > MAX_KEPT or monotonic_s() - _kept[0][0] > KEPT_S):
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
