"""Base of the adapters: they train on our loop, as the manual of their library says.

`start` builds the library's object, and `after_update` calls it as its manual tells a user to. Nothing is
added: no averaging of buffers, and none after the last step, unless the library does it.
"""

import warnings
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Work
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from paceline.core.errors import PacelineError
from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.transport.ports import NO_TRAFFIC, Collective, Traffic

# By a process group of its own that reduces through our collective. It is handed
# to the library where the library asks for a group, so everything above the
# all-reduce is the library's own code.


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
        self._traffic = NO_TRAFFIC
        self._reductions = 0

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
        self._traffic = NO_TRAFFIC
        self._reductions = 0
        return taken

    def average(self, tensor: Tensor) -> None:
        """Replace the tensor by the mean over all workers."""
        key = tensor.numel(), tensor.dtype
        if key not in self._rooms:  # all ranks reduce the same sizes in the same order
            self._rooms[key] = self._collective.allocate(*key)
        buffer = self._rooms[key]
        buffer.copy_(tensor.detach().reshape(-1))
        self._traffic += self._collective.all_reduce_mean(buffer)
        self._reductions += 1
        tensor.detach().copy_(buffer.view_as(tensor))


class PeerStrategy:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "the channel asks for one"
        self._plan = plan
        self._links = links
        self._collective = links.collective
        self._group = CollectiveGroup(links.collective)

    def prepare(self, replica: Replica, clock: Clock) -> None:
        if clock != 0:
            raise PacelineError(
                f"{type(self).__name__} cannot resume after {clock} steps: its library has no state to "
                "restore",
                "use --mode localsgd or diloco, or start a new run",
            )
        self._replica = replica
        replica.arena.gathers_gradients = False  # libraries look at `.grad` as backward left it
        self.start(replica.arena.module)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        """The stop request is ignored: no library here has a way to send it to the others."""
        apply_ns = self.update(step)
        traffic, reductions = self._group.take()
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=reductions > 0)

    def start(self, model: nn.Module) -> None:
        raise NotImplementedError

    def update(self, step: Step) -> int:
        """The optimizer's step, and whatever the library does after it."""
        raise NotImplementedError

    def is_last(self, step: Step) -> bool:
        return step + 1 == self._plan.steps

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        self._collective.close()


def local_update(replica: Replica) -> int:
    """One optimizer step that leaves `.grad` as it was: our optimizers want a zero where there is none."""
    without = [p for p in replica.arena.module.parameters() if p.grad is None]
    for parameter in without:
        parameter.grad = torch.zeros_like(parameter)
    apply_ns = replica.update()
    for parameter in without:
        parameter.grad = None
    return apply_ns


class HookedOptimizer(torch.optim.Optimizer):
    """A replica's update as a torch optimizer, for libraries that hang themselves on its hooks."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica.arena.module.parameters(), {})
        self._replica = replica
        self.apply_ns = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # torch's returns the loss
        self.apply_ns = local_update(self._replica)


class PeriodicAverager(PeerStrategy):
    def start(self, model: nn.Module) -> None:
        self._model = model
        with warnings.catch_warnings():
            # It advises against a period of 1, which a law asks for on purpose.
            warnings.simplefilter("ignore", UserWarning)
            self._averager = PeriodicModelAverager(
                period=self._plan.strategy.sync_every, process_group=self._group
            )

    def update(self, step: Step) -> int:
        apply_ns = local_update(self._replica)
        self._averager.average_parameters(self._model.parameters())
        return apply_ns
