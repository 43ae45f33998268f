"""One rank's part of what is trained: parameters, gradients and optimizer state are split over all ranks.

For the loop it is a replica like others. The whole model is built once in every
process, from the same seed, and then split, so that the numbers are those
of any other mode. Our own optimizers work number by number, so each rank runs
them on its parts as plain tensors; an optimizer of torch's gets torch's split
tensors, which is correct also for one that works on whole matrices.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, zeros

from paceline.checkpoints.sharded import PartsReader, load_parts, part_of
from paceline.checkpoints.snapshot import Snapshot, join_tensors, split_tensors, tensor_names
from paceline.core.clock import Clock
from paceline.plan.plan import FsdpPrecision, Plan
from paceline.tasks.optim import Adam, Sgd
from paceline.tasks.port import HasBlocks, Optimizer, Task
from paceline.transport.sharded_arena import ShardedArena
from paceline.worker.replica import Replica


class ShardedReplica(Replica):
    def __init__(self, plan: Plan, task: Task, device: torch.device, clock: Clock) -> None:
        super().__init__(plan, task, device, clock)
        self._local: list[nn.Parameter] = []  # parameters of the built-in optimizers

    def _laid_out(self, plan: Plan, task: Task, device: torch.device) -> ShardedArena:
        model = task.model()  # on the CPU: only parts go to the device
        blocks = task.blocks(model) if isinstance(task, HasBlocks) else None
        is_bf16 = plan.strategy.fsdp_precision is FsdpPrecision.BF16
        return ShardedArena(model, device, blocks=blocks, compute_dtype=torch.bfloat16 if is_bf16 else None)

    @property
    def parts(self) -> ShardedArena:
        assert isinstance(self.arena, ShardedArena), "that is how it was laid out"
        return self.arena

    def update(self, rate_factor: float = 1.0) -> int:
        assert self.optimizer, "built before the gradients are bound to what it moves"
        for part, gradient in zip(self._local, self.parts.local_gradients(), strict=bool(self._local)):
            part.grad = gradient
        return super().update(rate_factor)

    def whole_state(self) -> Mapping[str, Tensor]:
        """The whole state, gathered tensor by tensor as it is read; all ranks must read it."""
        return self.parts.whole_state()

    def live(self) -> Snapshot:
        """This rank's part, and where it belongs."""
        skeleton, tensors = split_tensors(self._optimizer_state(), "optimizer", copy=False)
        state = self.parts.module.state_dict()
        assert not tensors.keys() & state.keys(), "the model has tensors with the names of its optimizer's"
        part = part_of({**state, **tensors}, rank=dist.get_rank(), parts=dist.get_world_size())
        return Snapshot(part.tensors, {**part.facts, "optimizer": skeleton})

    def restore_from(self, folder: Path, rank: int) -> Snapshot:
        """Restore from a checkpoint of any number of ranks; returns the rest of the checkpoint."""
        reader = PartsReader(folder)
        skeleton = reader.facts["optimizer"]
        rooms = {name: self._room(reader, name) for name in tensor_names(skeleton)}
        load_parts({**self.parts.module.state_dict(), **rooms}, reader)
        if isinstance(self.optimizer, Sgd | Adam):
            rooms = {n: t.to_local() if isinstance(t, DTensor) else t for n, t in rooms.items()}
        self.optimizer.load_state_dict(join_tensors(skeleton, rooms))
        return Snapshot({}, reader.facts)

    def _room(self, reader: PartsReader, name: str) -> Tensor:
        """Split along the first dimension, as parameters are."""
        size = reader.size(name)
        dtype = reader.dtype(name)
        if not reader.is_split(name):
            return torch.zeros(size, dtype=dtype)
        return zeros(size, dtype=dtype, device_mesh=self.parts.mesh, placements=[Shard(0)])

    def _optimizer_state(self) -> dict[str, Any]:  # Any: torch's own shape
        optimizer = self.optimizer
        if not isinstance(optimizer, Sgd | Adam):
            return optimizer.state_dict()
        slots = {
            name: [self.parts.like_parameter(number, part) for number, part in enumerate(parts)]
            for name, parts in optimizer.slots.items()
        }
        settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        return {"steps": optimizer.steps, "group": settings, "slots": slots}

    def _build_optimizer(self) -> Optimizer:
        optimizer = super()._build_optimizer()
        if isinstance(optimizer, Sgd | Adam):
            self._local = self.parts.local_parts()
            optimizer.parameters[:] = self._local
        return optimizer

    def own_norm(self) -> float | None:
        """None: each rank has a part, and a collective would delay the step; clipping needs one anyway."""
        return None

    def _clip(self, limit: float) -> None:
        """Clip by the norm of the whole gradient, of which each rank has a part."""
        gradients = self.parts.local_gradients()
        squares = torch.stack(torch._foreach_norm(gradients)).square().sum()
        dist.all_reduce(squares)
        norm = self.gradient_norm = float(squares.sqrt())
        if norm > limit:
            torch._foreach_mul_(gradients, limit / norm)
