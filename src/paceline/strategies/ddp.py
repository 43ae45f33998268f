"""torch DistributedDataParallel, as torch ships it: the reference for ssgd.

torch reduces the gradients during backward by its own buckets. The wish to
stop cannot ride along there, so every few steps one extra number is reduced.
Compression is torch's own too (torch_hooks.py).
"""

from typing import ClassVar

import torch
import torch._dynamo  # DDP's constructor needs it; imported here it is paid once, before workers fork
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import PacelineError
from paceline.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.strategies.torch_hooks import Hook, hook_of
from paceline.transport.ports import Traffic
from paceline.transport.torch_dist import leave_group, ring_bytes

STOP_EVERY = 16  # steps between two questions whether to stop


class Ddp:
    channel: ClassVar[Channel] = Channel.TORCH

    def __init__(self, plan: Plan, links: Links) -> None:
        if len(set(plan.batch_sizes)) > 1:
            raise PacelineError(
                f"ddp averages gradients unweighted, but the batches differ: {plan.batch_sizes}",
                "give every worker the same batch size, or use --mode ssgd, which weights them",
            )
        self._plan, self._links = plan, links

    def prepare(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        self._wrapped: DistributedDataParallel = DistributedDataParallel(replica.arena.module)
        replica.forward = self._wrapped
        replica.arena.gathers_gradients = False
        payload = sum(p.numel() * p.element_size() for p in replica.arena.module.parameters())
        self._plain_bytes = ring_bytes(payload, self._links.world_size)
        self._hook: Hook | None = None
        if self._plan.compress is not None:
            self._hook = hook_of(self._plan.compress, self._wrapped, seed=self._plan.seed)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        apply_ns = self._replica.update()
        asks = (step + 1) % STOP_EVERY == 0 and step + 1 < self._plan.steps
        stop = asks and self._agree(wants_stop)
        return Outcome(traffic=self._traffic(), apply_ns=apply_ns, synced=True, stop=stop)

    def _traffic(self) -> Traffic:
        if self._hook is None:
            return Traffic(self._plain_bytes, self._plain_bytes)
        moved = ring_bytes(self._hook.payload_bytes(), self._links.world_size)
        return Traffic(moved, moved, bytes_saved=self._plain_bytes - moved)

    def _agree(self, wants_stop: bool) -> bool:
        wish = torch.tensor([float(wants_stop)], device=self._replica.arena.state.device)
        dist.all_reduce(wish)
        return bool(wish.item() > 0)

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        leave_group()
