"""Torch's process group over the mesh of a generation: what DDP and FSDP use on hosts that share nothing.

gloo and NCCL open connections of their own, which are neither authenticated nor encrypted, and cannot be
interrupted. `MeshGroup` is torch's default process group over the connections that the generation has
already: no further socket, no rendezvous, and its collectives end at once when the generation does.

One thread carries out the collectives in the order in which they were started, which is the same on all
members; so DDP sends a bucket while backward computes the next one. A collective that a torch hook starts
within that thread, in a callback of the one before, is carried out at once, on all members alike. A sum takes
two exchanges: piece r goes to rank r, which adds them up in rank order and sends the result to all. Every
member sends 2 n (N-1)/N bytes, as in a ring.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Rank
from paceline.transport.generation.mesh import Mesh
from paceline.transport.generation.network_world import NetworkCollective, NetworkGeneration
from paceline.transport.shm_collective import piece_of
from paceline.transport.torch_dist import install_group, leave_group

SMALL_BYTES = 1 << 14  # up to this size whole vectors go to all: one exchange instead of two
MAX_KEPT = 64  # buffers for vectors of different sizes


class MeshGroup:
    """The default process group of this process, over the mesh of its generation, until it is left."""

    def __init__(self, world: NetworkGeneration, timeout_s: float) -> None:
        self._mesh = world.mesh
        self._group = _Group(world.mesh, world.rank, world.parties)
        install_group(self._group, Rank(world.rank), world.parties, timeout_s)

    def why_lost(self, error: RuntimeError) -> str:
        """Why the collective failed whose error this is; empty: not because of a peer."""
        failure = self._group.failure
        return failure.what if isinstance(failure, PeerLostError) else ""

    def cut(self) -> None:
        """End the present collective, and all later ones, from any thread."""
        self._mesh.abort()

    def leave(self) -> None:
        self._group.end()
        leave_group()


class _Work(dist.Work):
    """A collective in progress. torch's own class for futures does not raise their errors in `wait`."""

    def __init__(self, future: "Future[Any]") -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta = timedelta()) -> bool:  # `mesh.swap` has the timeout
        self._future.wait()
        return True

    def get_future(self) -> "Future[Any]":
        return self._future


class _Group(dist.ProcessGroup):
    """The methods that torch calls, by their names in torch 2.13."""

    def __init__(self, mesh: Mesh, rank: int, parties: int) -> None:
        super().__init__(rank, parties)  # type: ignore[call-arg]  # the stub lacks this overload
        self.failure: Exception | None = None  # of the first collective that failed
        self._own = rank
        self._parties = parties
        self._others = [other for other in range(parties) if other != rank]
        self._collective = NetworkCollective(mesh, Rank(rank), parties, clock=SystemClock())
        self._buffers: dict[tuple[int, torch.dtype], Tensor] = {}
        self._started: queue.SimpleQueue[Future[None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="collectives", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Return once the thread has ended, without further messages."""
        self._collective.abort()
        self._started.put(None)
        self._thread.join()
        self._buffers.clear()  # torch's caches may keep the group

    # What torch calls.

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "paceline"

    def _set_group_name(self, name: str) -> None:
        """torch's own method keeps the name in a backend in C++, which this group does not have."""
        self._name = name

    @property
    def group_name(self) -> str:  # type: ignore[override]  # a new type of text in the stub
        return self._name

    # The stub has further overloads, of single tensors, which torch itself does not use.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]  # above
        _expect_sum(opts)
        return self._start(lambda: _for_each(self._sum, tensors), tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]  # above
        send = partial(self._broadcast, source=int(opts.rootRank))
        return self._start(lambda: _for_each(send, tensors), tensors)

    def allgather(  # type: ignore[override]  # above
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        def gather() -> None:
            for places, tensor in zip(outputs, inputs, strict=True):
                self._gather(places, tensor)

        return self._start(gather, outputs)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        def gather() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                self._gather(output.view(self._parties, -1).unbind(), tensor)

        return self._start(gather, outputs)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        _expect_sum(opts)

        def scatter() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                parts = list(_flat(tensor).view(self._parties, -1).unbind())
                output.view(-1).copy_(self._own_sum(parts, keeps=True))

        return self._start(scatter, outputs)

    def barrier(self, opts: Any = None) -> dist.Work:
        nothing = torch.empty(0)
        return self._start(lambda: self._sum(nothing), [nothing])

    # In the thread of the collectives.

    def _start(self, carry_out: Callable[[], object], result: object) -> dist.Work:
        """`result` is what the future holds in the end, as torch expects it of this collective."""

        def run(_: "Future[None]") -> object:
            if self.failure is not None:
                raise self.failure
            try:
                carry_out()
            except Exception as error:  # all of them are raised again, in whatever waits for the future
                self.failure = error
                raise
            return result

        start: Future[None] = Future()
        done = start.then(run)
        if threading.current_thread() is self._thread:
            start.set_result(None)
        else:
            self._started.put(start)
        return _Work(done)

    def _work(self) -> None:
        torch.set_grad_enabled(False)  # of this thread
        while (start := self._started.get()) is not None:
            start.set_result(None)

    def _sum(self, tensor: Tensor) -> None:
        if self._parties == 1:
            return
        flat = _flat(tensor)
        if flat.nbytes <= SMALL_BYTES:
            copies = self._buffer(self._parties * flat.numel(), flat.dtype).view(self._parties, -1).unbind()
            self._gather(copies, flat)
            flat.copy_(copies[0])
            for copy in copies[1:]:
                flat.add_(copy)
        else:
            bounds = (piece_of(rank, flat.numel(), self._parties) for rank in range(self._parties))
            parts = [flat[start:end] for start, end in bounds]
            own = self._own_sum(parts, keeps=False)
            self._exchange(dict.fromkeys(self._others, own), {other: parts[other] for other in self._others})
        _put_back(flat, tensor)

    def _own_sum(self, parts: Sequence[Tensor], *, keeps: bool) -> Tensor:
        """The sum over all ranks of this rank's piece: in its place, unless `keeps`."""
        own = parts[self._own]
        rooms = self._buffer(self._parties * own.numel(), own.dtype).view(self._parties, -1).unbind()
        self._exchange(
            {other: parts[other] for other in self._others}, {other: rooms[other] for other in self._others}
        )
        rooms[self._own].copy_(own)
        total = rooms[0] if keeps else torch.add(rooms[0], rooms[1], out=own)
        for room in rooms[1 if keeps else 2 :]:
            total.add_(room)
        return total

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        flat = _flat(tensor)
        if self._own == source:
            self._exchange(dict.fromkeys(self._others, flat), {})
        else:
            self._exchange({}, {source: flat})
        _put_back(flat, tensor)

    def _gather(self, places: Sequence[Tensor], tensor: Tensor) -> None:
        flats = [_flat(place) for place in places]
        own = _flat(tensor)
        self._exchange(dict.fromkeys(self._others, own), {other: flats[other] for other in self._others})
        flats[self._own].copy_(own)
        for flat, place in zip(flats, places, strict=True):
            _put_back(flat, place)

    def _exchange(self, out: dict[int, Tensor], into: dict[int, Tensor]) -> None:
        self._collective.exchange(
            {rank: _as_bytes(vector) for rank, vector in out.items()},
            {rank: _as_bytes(vector) for rank, vector in into.items()},
        )

    def _buffer(self, numel: int, dtype: torch.dtype) -> Tensor:
        """The same one at every step: fresh memory would cost as much as the sum."""
        key = (numel, dtype)
        if key not in self._buffers:
            if len(self._buffers) == MAX_KEPT:
                self._buffers.clear()
            self._buffers[key] = torch.empty(numel, dtype=dtype)
        return self._buffers[key]


def _for_each(call: Callable[[Tensor], None], tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        call(tensor)


def _flat(tensor: Tensor) -> Tensor:
    """Its numbers in a row in CPU memory: the same memory, where that is possible."""
    return tensor.detach().cpu().contiguous().view(-1)


def _put_back(flat: Tensor, tensor: Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view_as(tensor))


def _as_bytes(vector: Tensor) -> Tensor:
    return vector.view(torch.uint8)  # numpy, which gives the memory, has no bfloat16


def _expect_sum(opts: Any) -> None:  # Any: torch's options
    if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
        raise ValueError(f"the collectives of an elastic run on hosts only sum, and this is {opts.reduceOp}")
