"""What does one of several parameter servers hold? Its slice of the model, and the optimizer's state for it.

A module of its own whose parameters are the pieces of tensors that lie in the
slice. The model's vector is laid out so that the slice's own vector is exactly
that stretch of it. Optimizers that treat every number by itself do to the pieces
what they would do to the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from paceline.checkpoints.store import Snapshot
from paceline.clock import Clock
from paceline.plan.plan import Plan
from paceline.tasks.port import Task
from paceline.transport.arena import Arena, Layout
from paceline.transport.slices import Cut, cut, slices_of
from paceline.worker.replica import Replica


@dataclass(frozen=True, slots=True)
class Cuts:
    """What of a model lies in one part, by the names that it has there."""

    where: slice
    pieces: Mapping[str, Cut]
    buffers: Mapping[str, Cut]

    @classmethod
    def of(cls, layout: Layout, part: int, parts: int) -> "Cuts":
        where = slices_of(layout, parts)[part]
        pieces = enumerate(cut(layout.parameters, where))
        buffers = enumerate(cut(layout.buffers, where))
        return cls(
            where,
            {f"pieces.{number}": found for number, found in pieces},
            {f"statistics.{number}": found for number, found in buffers},
        )

    @property
    def numel(self) -> int:
        return int(self.where.stop - self.where.start)

    @property
    def named(self) -> Mapping[str, Cut]:
        return {**self.pieces, **self.buffers}

    def put_into(self, whole: Arena, saved: Snapshot) -> None:
        """What a server of this part saved, at its place in the whole model."""
        for name, found in self.named.items():
            whole.state[found.in_vector].copy_(saved.tensors[name])

    def cut_from(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of the whole model's tensors, what lies in this part."""
        return {n: tensors[found.name].reshape(-1)[found.in_tensor] for n, found in self.named.items()}


class SlicedReplica(Replica):
    def __init__(
        self, plan: Plan, task: Task, device: torch.device, clock: Clock, *, part: int, parts: int
    ) -> None:
        super().__init__(plan, task, device, clock)
        whole = self.arena
        self.cuts = Cuts.of(whole.layout, part, parts)
        module = _Pieces(whole.state, self.cuts)
        self.arena = Arena(module)
        self.forward = module
        self._parameters = list(module.parameters())
        # Only part 0 has the tail of the whole, but every arena has one.
        own = self.arena.layout.numel if part == 0 else self.arena.layout.buffers_start
        assert own == self.cuts.numel, "a slice is laid out as it is in the whole"


class _Pieces(nn.Module):
    def __init__(self, state: torch.Tensor, cuts: Cuts) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(
            nn.Parameter(state[found.in_vector].clone()) for found in cuts.pieces.values()
        )
        self.statistics = nn.Module()
        for number, found in enumerate(cuts.buffers.values()):
            self.statistics.register_buffer(str(number), state[found.in_vector].clone())
