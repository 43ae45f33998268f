"""How does a library that talks torch.distributed meet the others of a virtual run?

By a process group of its own that reduces through our collective. It is handed
to the library where the library asks for a group, so everything above the
all-reduce is the library's own code.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work

from paceline.transport.ports import NO_TRAFFIC, Collective, Traffic


class DoneWork(Work):
    """The reduction is over when it was asked for: in virtual time moving takes no time."""

    def __init__(self, result: list[Tensor]) -> None:
        super().__init__()
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self._future


class CollectiveGroup(dist.ProcessGroup):
    def __init__(self, collective: Collective) -> None:
        super().__init__(collective.rank, collective.world_size)  # type: ignore[call-arg]  # needs no store
        self._collective = collective
        self._rooms: dict[tuple[int, torch.dtype], Tensor] = {}
        self._traffic, self._reductions = NO_TRAFFIC, 0

    def allreduce(  # type: ignore[override]  # torch calls one of its three forms
        self, tensors: list[Tensor], opts: dist.AllreduceOptions
    ) -> DoneWork:
        sums = opts.reduceOp == dist.ReduceOp(dist.ReduceOp.SUM)
        if not sums and opts.reduceOp != dist.ReduceOp(dist.ReduceOp.AVG):
            raise NotImplementedError("the virtual group sums and averages, and has no other operation")
        for tensor in tensors:
            self.average(tensor)
            if sums:
                # Our port has a mean; times N it is the sum, but for rounding unless N is a power of two.
                tensor.mul_(self._collective.world_size)
        return DoneWork(tensors)

    def take(self) -> tuple[Traffic, int]:
        """What was moved, in how many reductions, since this was last asked."""
        taken = self._traffic, self._reductions
        self._traffic, self._reductions = NO_TRAFFIC, 0
        return taken

    def average(self, tensor: Tensor) -> None:
        """Replace the tensor by the mean over all workers."""
        key = tensor.numel(), tensor.dtype
        if key not in self._rooms:  # all ranks reduce the same sizes in the same order
            self._rooms[key] = self._collective.allocate(*key)
        room = self._rooms[key]
        room.copy_(tensor.detach().reshape(-1))
        self._traffic += self._collective.all_reduce_mean(room)
        self._reductions += 1
        tensor.detach().copy_(room.view_as(tensor))
