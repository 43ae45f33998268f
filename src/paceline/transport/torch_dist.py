"""torch.distributed transport: collectives over gloo or NCCL, and a gloo group that can be aborted.

`TorchCollective` works on any number of hosts. The ring moves 2(N-1)/N of the vector
per rank in each direction, which the byte counters report; the kernel's own counts of
the connections are in result.json (`wire_bytes`).

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
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, HashStore, ProcessGroupGloo, Store

from paceline.core.clock import Clock, monotonic_s
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.core.tcp import SocketBytes, WireBytes, tcp_sockets
from paceline.transport.ports import Traffic

# Bytes on the wire so far; None where they are not counted.
CountWire: TypeAlias = Callable[[], WireBytes | None]


def no_wire() -> None:
    """Without torch's group nothing is counted."""


def join_group(
    backend: str,
    *,
    store_path: str,
    rank: Rank,
    world_size: int,
    timeout_s: float,
    store: Store | None = None,
) -> CountWire:
    """Create the default process group of this process, by a store, or by a file on this host.

    Returns a function that counts the bytes on gloo's connections so far. It returns when every rank has
    counted its own, since a rank that ends closes them. NCCL connects later, and is not counted.
    """
    opened = SocketBytes()
    dist.init_process_group(
        backend,
        store=FileStore(store_path, world_size) if store is None else store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    opened.begin()

    def count() -> WireBytes | None:
        total = opened.total()
        with _lost_peer_is_an_error(timeout_s):
            wait_for_all()
        return total

    return count if backend == "gloo" else no_wire


STOP_POLL_EVERY = 16  # steps between two reductions of the stop flag, where it cannot travel with gradients


def should_poll_stop(step: int, total: int) -> bool:
    return (step + 1) % STOP_POLL_EVERY == 0 and step + 1 < total


def agree_to_stop(wants_stop: bool, device: torch.device) -> bool:
    """Whether any rank wants to stop."""
    flag = torch.tensor([float(wants_stop)], device=device)
    dist.all_reduce(flag)
    return bool(flag.item() > 0)


# A thread of gloo drops its reference to a tensor after the wait for it has ended. If that is the last
# reference, the thread needs the GIL, and waits for ever if the GIL's holder is destroying the group.
_ZERO = torch.zeros(1)


def wait_for_all() -> None:
    """Barrier of all ranks. (torch's own barrier depends on the kind of group.)"""
    dist.all_reduce(_ZERO)


def leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def abandon_group() -> None:
    """Abort the group at once, so that the other ranks do not wait until their timeout."""
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
        # gloo does not separate waiting from transfer; all of it counts as waiting for others.
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
        senders = [rank for rank in sources if rank != self.rank]
        receivers = [rank for rank in targets if rank != self.rank]
        started_ns = self._clock.now_ns()
        # gloo sends between two ranks from CPU memory only.
        sent = vector.cpu() if dist.get_backend() == "gloo" else vector
        received = {rank: torch.empty_like(sent) for rank in senders}
        sends = [dist.P2POp(dist.isend, sent, rank) for rank in receivers]
        receives = [dist.P2POp(dist.irecv, buffer, rank) for rank, buffer in received.items()]
        with _lost_peer_is_an_error(self._timeout_s):
            for work in dist.batch_isend_irecv(sends + receives) if sends or receives else []:
                work.wait()
        wait_ns = self._clock.now_ns() - started_ns
        copies = [
            vector.clone() if rank == self.rank else received[rank].to(vector.device) for rank in sources
        ]
        return copies, Traffic(vector.nbytes * len(receivers), vector.nbytes * len(senders), wait_ns)

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
    """The bytes that each rank of a ring all-reduce sends, and also receives."""
    return 2 * (world_size - 1) * payload_bytes // world_size


class _lost_peer_is_an_error:  # noqa: N801 - reads as a statement where it is used
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            raise PeerLostError(
                f"a collective over torch.distributed failed: {str(error).splitlines()[0]}",
                f"another worker died, or did not respond within {self._timeout_s:g} s; see its log",
            ) from error


JOIN_S = 10.0  # all ranks were alive a moment ago
POLL_S = 0.005
_READY = "paceline"  # torch's name for a group that is connected already
_connected: list[ProcessGroupGloo | dist.ProcessGroup] = []
# Connections that were shut are kept long enough for a frozen process to resume and detect the group's end.
KEPT_S = 60.0
MAX_KEPT = 8
_kept: deque[tuple[float, list[socket.socket]]] = deque()


class AbortableGroup:
    """The default process group of this process, until it is left or broken."""

    def __init__(
        self, store_path: str, rank: Rank, world_size: int, timeout_s: float, is_over: Callable[[], bool]
    ) -> None:
        before = set(tcp_sockets())
        group = _connect(store_path, rank, world_size, timeout_s, is_over)
        # Sockets that another thread opens meanwhile are included: the coordinator's client connects again.
        # Listeners are not: shutting one would kill gloo.
        self._sockets = set(tcp_sockets()) - before
        install_group(group, rank, world_size, timeout_s)

    def cut(self) -> None:
        """Abort the group, from any thread: a thread of this process that waits in it gets an error."""
        sockets = self._sockets
        self._sockets = set()
        kept = [connection for fd, inode in sockets if (connection := _shut(fd, inode)) is not None]
        if kept:  # empty at a second call
            _kept.append((monotonic_s(), kept))
        _close_old()

    def why_lost(self, error: RuntimeError) -> str:
        return why_lost(error)

    def leave(self) -> None:
        self._sockets = set()
        leave_group()


def why_lost(error: RuntimeError) -> str:
    """Torch's message, if it means that a rank of the group is lost or does not respond; otherwise empty."""
    text = str(error).lower()
    is_lost = isinstance(error, dist.DistError) or "gloo" in text or "wait timeout" in text
    return str(error).splitlines()[0] if is_lost else ""


def _connect(
    path: str, rank: Rank, world_size: int, timeout_s: float, is_over: Callable[[], bool]
) -> ProcessGroupGloo:
    results: queue.SimpleQueue[ProcessGroupGloo | Exception] = queue.SimpleQueue()

    def connect() -> None:
        try:
            store = FileStore(path, world_size)
            store.set_timeout(timedelta(seconds=min(JOIN_S, timeout_s)))
            results.put(ProcessGroupGloo(store, rank, world_size, timedelta(seconds=timeout_s)))
        except Exception as error:  # also a full disk: it is raised in the waiting thread
            results.put(error)

    threading.Thread(target=connect, name="connecting", daemon=True).start()
    while True:
        try:
            result = results.get(timeout=POLL_S)
        except queue.Empty:
            if is_over():
                message = "the generation ended while its workers were connecting"
                raise PeerLostError(message, "the run continues in the next one") from None
            continue
        if isinstance(result, Exception):
            raise result
        return result


def install_group(
    group: ProcessGroupGloo | dist.ProcessGroup, rank: Rank, world_size: int, timeout_s: float
) -> None:
    """Install the group as torch's default: torch creates groups by backend, so one is registered for it."""
    if _READY not in dist.Backend.backend_list:
        dist.Backend.register_backend(_READY, lambda *_: _connected.pop(), devices=["cpu"])
    _connected.append(group)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(_READY, store=HashStore(), rank=rank, world_size=world_size, timeout=timeout)


def _shut(fd: int, inode: int) -> socket.socket | None:
    """Shut the socket for reading; the duplicate keeps the connection after gloo has closed its own."""
    try:
        connection = _duplicate(fd)
    except OSError:
        return None  # closed meanwhile
    try:
        if os.fstat(connection.fileno()).st_ino == inode:  # otherwise the descriptor was reused
            connection.shutdown(socket.SHUT_RD)
            return connection
    except OSError:
        pass  # the other end has closed
    connection.close()
    return None


def _close_old() -> None:
    while _kept and (len(_kept) > MAX_KEPT or monotonic_s() - _kept[0][0] > KEPT_S):
        for connection in _kept.popleft()[1]:
            connection.close()


def _duplicate(fd: int) -> socket.socket:
    """The same socket under a new descriptor."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
