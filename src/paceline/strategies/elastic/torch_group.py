"""Elastic DDP and FSDP: one generation of workers in a torch process group, any of which may die.

The samples of a step are the shards' samples for any number of workers; each
worker computes its contiguous shards as one batch, weighted by its number of
samples. So a step is the same mean for any number of workers, up to the order of
summation. `committed` is the number of steps of this replica. If a peer is lost,
forward or backward raises an error, and the replica is restored to its last step.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.core.errors import PeerLostError
from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.ddp import Hook, hook_of
from paceline.strategies.port import Begun, Links, Outcome, Replica, Weighted
from paceline.sync.assignment import SampleSlice, WorkUnit
from paceline.sync.samples import slice_of
from paceline.sync.shard_balancing import shards_of
from paceline.transport.ports import Traffic
from paceline.transport.sharded_arena import ShardedArena
from paceline.transport.torch_dist import ring_bytes, should_poll_stop


class GenerationMembers:
    """The workers of this generation, and those of them that were requested to leave."""

    def __init__(
        self,
        names: Sequence[str],  # by rank
        rank: int,
        *,
        wants_leave: Callable[[], bool],
        is_over: Callable[[], bool],
    ) -> None:
        self._names = names
        self._rank = rank
        self._wants_leave = wants_leave
        self._is_over = is_over
        self.leaving: list[int] = []

    @property
    def has_left(self) -> bool:
        return self._rank in self.leaving

    def agree(self, wants_stop: bool, device: torch.device) -> bool:
        """Whether any worker wants to stop. Also updates `leaving`."""
        flags = torch.zeros(1 + len(self._names), device=device)
        flags[0] = float(wants_stop)
        flags[1 + self._rank] = float(self._wants_leave())
        dist.all_reduce(flags)
        leaving = [rank for rank, flag in enumerate(flags[1:].tolist()) if flag > 0]
        # One worker with the state stays until others have it too.
        self.leaving = leaving[1:] if len(leaving) == len(self._names) else leaving
        return bool(flags[0] > 0)

    def check(self) -> None:
        if self.leaving:
            names = ", ".join(self._names[rank] for rank in self.leaving)
            raise PeerLostError(f"{names} left on request", "the run continues in the next generation")
        if self._is_over():
            raise PeerLostError("the generation ended", "the run continues in the next one")


class TorchGeneration:
    """Base of both modes; a subclass wraps the model."""

    channel: ClassVar[Channel] = Channel.TORCH

    def __init__(self, plan: Plan, links: Links, members: GenerationMembers) -> None:
        self._plan = plan
        self._members = members
        self._world = links.world_size
        own_shards = shards_of(links.rank, workers=links.world_size, shards=plan.num_workers)
        self._shard = own_shards.start
        self._count = sum(plan.batch_sizes[shard] for shard in own_shards)
        self.committed = 0
        self.gradients = 0  # computed by this worker

    def prepare(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        self.committed = int(clock)
        assert isinstance(replica, Weighted), "a worker's own replica"
        self._weighted = replica
        self._weight = self._count * self._world / self._plan.global_batch
        replica.loss_weight = self._weight
        self._buffers = list(replica.arena.module.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]
        self._moved = self._wrap(replica, replica.arena.module)

    def _wrap(self, replica: Replica, module: nn.Module) -> int:
        """Wrap the module so that gradients are averaged; the bytes that each worker sends at a step."""
        raise NotImplementedError

    def begin_step(self, step: Step) -> Begun | None:
        if self.committed >= self._plan.steps:
            return None
        self._members.check()
        start, _ = slice_of(self._shard, self.committed, self._plan.batch_sizes)
        return Begun(share=WorkUnit(self._shard, self.committed, SampleSlice(start, self._count)))

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self._average_buffers()
        # Agree before the commit: a committed step whose worker is interrupted here would have no row.
        polls = should_poll_stop(self.committed, self._plan.steps)
        stop = polls and self._members.agree(wants_stop, self._replica.arena.state.device)
        apply_ns = self._replica.update()
        self.committed += 1
        self.gradients += 1
        for buffer, before in zip(self._buffers, self._before, strict=True):
            before.copy_(buffer)
        return Outcome(
            traffic=self._traffic(),
            apply_ns=apply_ns,
            synced=True,
            stop=stop,
            shares_done=self.committed * self._plan.num_workers,
        )

    @property
    def steps_done(self) -> int:
        return self.committed

    def _traffic(self) -> Traffic:
        return Traffic(self._moved, self._moved)

    def _average_buffers(self) -> None:
        """Average the buffers that forward changes."""
        raise NotImplementedError

    def undo(self) -> None:
        """Restore the batch statistics: drop what forward changed in a lost step."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None:
        assert not saved, "between two steps there is nothing but the replica's own state"

    def close(self) -> None:
        """Unwrap the replica, at its last step."""
        self.undo()
        self._replica.forward = self._replica.arena.module
        self._weighted.loss_weight = 1.0


class DdpGeneration(TorchGeneration):
    """Whole replicas, which must be equal after every step, so batch statistics are averaged, as in ssgd."""

    def _wrap(self, replica: Replica, module: nn.Module) -> int:
        layout = replica.arena.layout
        self._statistics = replica.arena.state[layout.buffers_start : layout.tail_start]
        wrapped = DistributedDataParallel(module, broadcast_buffers=False)
        replica.forward = wrapped
        self._hook: Hook | None = None
        if self._plan.compress is not None:
            self._hook = hook_of(self._plan.compress, wrapped, seed=self._plan.seed)
        replica.arena.gathers_gradients = False
        return ring_bytes(sum(p.numel() * p.element_size() for p in module.parameters()), self._world)

    def _traffic(self) -> Traffic:
        if self._hook is None:
            return super()._traffic()
        sent = ring_bytes(self._hook.payload_bytes(), self._world)
        return Traffic(sent, sent, bytes_saved=self._moved - sent)

    def _average_buffers(self) -> None:
        if self._statistics.numel():
            self._statistics.mul_(self._weight)
            dist.all_reduce(self._statistics)
            self._statistics.div_(self._world)


class FsdpGeneration(TorchGeneration):
    """Every worker holds a shard of the model."""

    def _wrap(self, replica: Replica, module: nn.Module) -> int:
        assert isinstance(replica.arena, ShardedArena), "the replica was split over the workers"
        self._arena = replica.arena
        moved = self._arena.moved
        return (moved.gathered + moved.reduced) * (self._world - 1) // self._world

    def _average_buffers(self) -> None:
        self._arena.average_buffers(self._weight)
