"""How do ranks reduce a vector over gloo or NCCL? By torch.distributed, as it is.

Works on any number of hosts. The ring moves 2(N-1)/N of the vector each way
per rank, which is what the byte counters say.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store

from paceline.clock import Clock
from paceline.errors import PeerLostError
from paceline.ids import Rank
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


STOP_EVERY = 16  # steps between two questions whether to stop, where the wish cannot ride along


def asks_to_stop_after(step: int, total: int) -> bool:
    return (step + 1) % STOP_EVERY == 0 and step + 1 < total


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
