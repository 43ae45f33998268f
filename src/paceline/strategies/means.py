"""Means over all workers: exact or compressed by the plan; optimizer moments; the outer step.

A strategy makes one `Mean` for each vector that it averages. `lossy_end` is
where the part of the vector ends that may be approximated; what follows
(buffers, the stop flag) is always averaged exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.compression.mean import compressed_mean
from paceline.plan.plan import Plan
from paceline.strategies.port import Links
from paceline.transport.arena import Piece
from paceline.transport.ports import NO_TRAFFIC, Collective, Traffic


class Mean(Protocol):
    @property
    def is_lossy(self) -> bool:
        """Whether the vector must hold differences from common values, so that a small error stays small."""
        ...

    def reduce(self) -> Traffic:
        """Replace the vector by the mean over all workers; every worker then holds the same bits."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """The state that is kept from one averaging to the next."""
        ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class ExactMean:
    collective: Collective
    vector: Tensor
    is_lossy = False

    def reduce(self) -> Traffic:
        return self.collective.all_reduce_mean(self.vector)

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...


def mean_of(
    plan: Plan, links: Links, vector: Tensor, *, lossy_end: int, pieces: Sequence[Piece] = ()
) -> Mean:
    """The plan's mean of `vector` (from `allocate`); `pieces` are the tensors it consists of."""
    assert links.collective is not None, "averaging needs a collective"
    if plan.compress is None or lossy_end == 0:
        return ExactMean(links.collective, vector)
    return compressed_mean(
        plan,
        plan.compress,
        links.collective,
        vector,
        lossy_end=lossy_end,
        pieces=pieces,
        clock=links.clock,
    )


def strip_prefix(saved: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The saved tensors of one of several means; the names without their prefix."""
    return {name.removeprefix(prefix): t for name, t in saved.items() if name.startswith(prefix)}


class Moments:
    """Averages the optimizer's tensors, the same ones each time, through one vector made on first use."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._shared: Tensor | None = None

    def average(self, tensors: Sequence[Tensor], *, weight: float = 1.0) -> Traffic:
        """Replace every tensor by its mean over all workers, in place."""
        if not tensors:
            return NO_TRAFFIC
        sizes = [t.numel() for t in tensors]
        if self._shared is None:
            self._shared = self._collective.allocate(sum(sizes), tensors[0].dtype)
        parts = torch.split(self._shared, sizes)
        for tensor, part in zip(tensors, parts, strict=True):
            part.copy_(tensor.reshape(-1))
        if weight != 1.0:
            self._shared.mul_(weight)
        traffic = self._collective.all_reduce_mean(self._shared)
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        return traffic


def outer_step(theta: Tensor, velocity: Tensor, mean: Tensor, *, lr: float, momentum: float) -> None:
    """One step of SGD with Nesterov momentum on θ and its velocity, in place.

    θ ← θ - lr·(Δ + μ·v) with v ← μ·v + Δ, where Δ = θ - mean. Computed from the
    mean, so that lr = 1 without momentum gives the mean to the bit.
    """
    delta = theta - mean
    velocity.mul_(momentum).add_(delta)
    theta.copy_(mean).add_(delta, alpha=1.0 - lr)
    if momentum:
        theta.add_(velocity, alpha=-lr * momentum)
