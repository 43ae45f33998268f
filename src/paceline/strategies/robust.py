"""How do ssgd and ps survive bad workers? They see all gradients and combine them by the plan's rule.

Gradients and buffers are combined one after the other by the same rule, so that
neither can hide in the other; padding takes no part. Whoever combines the same
vectors gets the same bits: under ssgd every worker does, for itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import MisfitError, TrainingError
from paceline.plan.catalog import fewest_workers
from paceline.plan.plan import Plan
from paceline.strategies.aggregation import Aggregate, built_in
from paceline.strategies.load import load_function
from paceline.strategies.port import Links
from paceline.transport.arena import Layout, Piece
from paceline.transport.ports import Collective, Traffic


@dataclass(frozen=True, slots=True)
class Combining:
    """A rule for vectors that are laid out like an arena's."""

    name: str
    rule: Aggregate
    layout: Layout
    fewest: int  # gradients that it takes for the promised tolerance

    def into(self, target: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Combine parameters' and buffers' parts of the vectors; the tail of `target` stays as it is."""
        if len(vectors) < self.fewest:
            raise TrainingError(
                f"{self.name} needs {self.fewest} gradients, but only {len(vectors)} workers are left",
                "start the run again from its last checkpoint, with all workers or a smaller tolerance",
            )
        for pieces in (self.layout.parameters, self.layout.buffers):
            if pieces:
                stack = torch.stack([_joined(vector, pieces) for vector in vectors])
                _part(target, pieces, self._combined(stack))
        return target

    def _combined(self, stack: Tensor) -> Tensor:
        shape, dtype = stack.shape[1:], stack.dtype
        found: object = self.rule(stack)
        if not isinstance(found, Tensor) or found.shape != shape or found.dtype != dtype:
            seen = (
                f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
            )
            raise MisfitError(
                f"{self.name} returned {seen[:200]}, but it must return {dtype} of shape {tuple(shape)}",
                "it is given a tensor of shape (workers, d) and returns one of shape (d,) and the same dtype",
            )
        if bool(found.isnan().any()):
            raise TrainingError(
                f"{self.name} of {len(stack)} gradients is NaN: fewer of them are sound than it needs",
                "if the loss grew before, lower lr or set clip_norm; otherwise raise byzantine_tolerance",
            )
        return found


def _joined(vector: Tensor, pieces: Sequence[Piece]) -> Tensor:
    return torch.cat([piece.view(vector).reshape(-1) for piece in pieces])


def _part(target: Tensor, pieces: Sequence[Piece], joined: Tensor) -> None:
    sizes = [piece.shape.numel() for piece in pieces]
    for piece, values in zip(pieces, torch.split(joined, sizes), strict=True):
        piece.view(target).copy_(values.view(piece.shape))


def combining_of(plan: Plan, layout: Layout) -> Combining | None:
    """The plan's rule; None for the plain mean, which needs to see nobody's gradient by itself."""
    way, tolerance = plan.strategy.aggregate, plan.strategy.byzantine_tolerance
    if way == "mean":
        return None
    if len(set(plan.batch_sizes)) > 1:
        raise MisfitError(
            f"aggregate {way} gives no worker a weight, but the batches differ: {plan.batch_sizes}",
            "give every worker the same batch_size, or use --aggregate mean, which weights them",
        )
    rule = built_in(way, tolerance) or load_function(way, what="aggregate")
    return Combining(way, rule, layout, fewest_workers(way, tolerance))


@dataclass(frozen=True, slots=True)
class RobustMean:
    """In place of a mean (strategies/means.py): gather everybody's vector, then combine."""

    collective: Collective
    vector: Tensor
    combining: Combining
    is_lossy = False

    def reduce(self) -> Traffic:
        everybody, traffic = self.collective.gather(self.vector)
        self.combining.into(self.vector, everybody)
        start = self.combining.layout.tail_start
        # A wish to stop is anybody's: averaged, so that it shows whoever has it.
        self.vector[start:] = torch.stack([vector[start:] for vector in everybody]).mean(dim=0)
        return traffic

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...


def robust_mean_of(plan: Plan, links: Links, vector: Tensor, layout: Layout) -> RobustMean | None:
    """None when the plan takes the plain mean."""
    combining = combining_of(plan, layout)
    if combining is None:
        return None
    assert links.collective is not None, "combining needs a collective"
    return RobustMean(links.collective, vector, combining)
