"""torch's fully_shard (FSDP2), as torch ships it: every worker keeps only its shard of the model.

Before a block computes, its parameters are gathered from all workers; after
backward each worker receives the mean gradient of its own shard and updates
that. Parameters, gradients and optimizer state take 1/N of the memory. The
result equals ssgd, up to the order of summation. As in ddp, the stop flag cannot
travel with the gradients, so it is reduced every few steps.
"""

from typing import ClassVar

import torch.distributed.checkpoint  # noqa: F401 - imported here it is paid once, before workers fork
from torch import Tensor

from paceline.core.errors import MisfitError
from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.transport.ports import Traffic
from paceline.transport.sharded_arena import ShardedArena
from paceline.transport.torch_dist import agree_to_stop, leave_group, should_poll_stop


class Fsdp:
    channel: ClassVar[Channel] = Channel.TORCH

    def __init__(self, plan: Plan, links: Links) -> None:
        if len(set(plan.batch_sizes)) > 1:
            raise MisfitError(
                f"fsdp averages gradients unweighted, but the batch sizes differ: {plan.batch_sizes}",
                "give every worker the same batch size, or use --mode ssgd, which weights them",
            )
        self._plan = plan
        self._links = links

    def prepare(self, replica: Replica, clock: Clock) -> None:
        assert isinstance(replica.arena, ShardedArena), "the replica was split over the workers"
        self._replica = replica
        self._arena = replica.arena
        moved = self._arena.moved
        peers = self._links.world_size - 1
        each = (moved.gathered + moved.reduced) * peers // self._links.world_size
        self._traffic = Traffic(each, each)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self._arena.average_buffers()
        apply_ns = self._replica.update()
        stop = should_poll_stop(step, self._plan.steps) and agree_to_stop(
            wants_stop, self._arena.state.device
        )
        return Outcome(traffic=self._traffic, apply_ns=apply_ns, synced=True, stop=stop)

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        leave_group()
