"""Byzantine-robust aggregation for ssgd and ps: median, trimmed mean, krum, or a user's function.

Median and trimmed mean (Yin 2018, arXiv 1803.01498) work on each coordinate alone,
krum (Blanchard 2017, arXiv 1703.02757) selects one whole gradient. None depends on
the order of the rows. No honest gradient is NaN or infinite, so such a value is
removed first, as one of the `tolerance` bad ones; where none is left, the result
is NaN.

Gradients and buffers are aggregated separately by the same rule, so that neither
can hide in the other; padding is excluded. Equal vectors give equal bits: under
ssgd every worker aggregates for itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from paceline.core.errors import MisfitError, TrainingError
from paceline.plan.catalog import min_workers_for
from paceline.plan.plan import Plan
from paceline.strategies.load import load_function
from paceline.strategies.port import Links
from paceline.transport.arena import Layout, Piece
from paceline.transport.ports import Collective, Traffic

# Median and trimmed mean (Yin 2018, arXiv 1803.01498) look at each coordinate
# alone, krum (Blanchard 2017, arXiv 1703.02757) picks one whole gradient. None
# depends on the order of the rows. No honest gradient is NaN or infinite, so such
# a value is put away first, as one of the `tolerance` bad ones; where nothing is
# left, the result is NaN.

Aggregate = Callable[[Tensor], Tensor]


def mean(stack: Tensor) -> Tensor:
    """Summed in the order of the rows, as an all-reduce sums in the order of ranks."""
    total = stack[0].clone()
    for row in stack[1:]:
        total.add_(row)
    return total.div_(len(stack))


def median(stack: Tensor) -> Tensor:
    """The middle of each coordinate; of an even number, the mean of the middle two."""
    return _mean_of_the_middle(stack, lambda sound: (sound - 1).div(2, rounding_mode="floor"))


def trimmed_mean(stack: Tensor, tolerance: int) -> Tensor:
    """The mean of each coordinate without its `tolerance` largest and smallest values."""
    # What was put away already is not cut off a second time.
    return _mean_of_the_middle(stack, lambda sound: tolerance - (len(stack) - sound))


def krum(stack: Tensor, tolerance: int) -> Tensor:
    """The gradient whose squared distances to its N-f-2 nearest others have the smallest sum."""
    distances = torch.full((len(stack), len(stack)), torch.inf, dtype=torch.float64, device=stack.device)
    for one in range(len(stack)):
        for other in range(one):
            apart = torch.linalg.vector_norm(stack[one] - stack[other], dtype=torch.float64)
            distances[one, other] = distances[other, one] = apart.square()
    # NaN and infinity are far from everything, even from themselves.
    nearest = distances.nan_to_num(nan=torch.inf, posinf=torch.inf).sort(dim=1).values
    scores = nearest[:, : max(1, len(stack) - tolerance - 2)].sum(dim=1)
    best = float(scores.min())
    if best == torch.inf:
        return torch.full_like(stack[0], torch.nan)
    # Two that are each other's nearest have the same score: the smaller one, whoever sent it.
    return reduce(_smaller, [stack[place] for place, score in enumerate(scores.tolist()) if score == best])


def _mean_of_the_middle(stack: Tensor, cut_of: Callable[[Tensor], Tensor]) -> Tensor:
    """By coordinate: put away what is not finite, cut so many at each end, average the rest."""
    finite = stack.isfinite()
    sound = finite.sum(dim=0)
    ordered = stack.where(finite, torch.inf).sort(dim=0).values
    cut = cut_of(sound).clamp_(min=0)
    place = torch.arange(len(stack), device=stack.device).unsqueeze(1)
    kept = (place >= cut) & (place < sound - cut)
    average = ordered.where(kept, 0.0).sum(dim=0) / kept.sum(dim=0)
    low, high = (ordered.gather(0, at.clamp(min=0).unsqueeze(0))[0] for at in (cut, sound - cut - 1))
    # Rounding must not carry a mean out of the range of what it is the mean of. Of nothing it is 0/0.
    return torch.where(kept.any(dim=0), average.clamp(low, high), torch.nan)


def _smaller(one: Tensor, other: Tensor) -> Tensor:
    """The one that is smaller where they first differ."""
    differing = (one != other).nonzero()
    if not len(differing):
        return one
    first = int(differing[0])
    return one if bool(one[first] < other[first]) else other


def builtin_aggregate(name: str, tolerance: int) -> Aggregate | None:
    """The function of a way in plan.catalog.AGGREGATES."""
    ways: dict[str, Aggregate] = {
        "mean": mean,
        "median": median,
        "trimmed-mean": partial(trimmed_mean, tolerance=tolerance),
        "krum": partial(krum, tolerance=tolerance),
    }
    return ways.get(name)


@dataclass(frozen=True, slots=True)
class VectorAggregation:
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
        shape = stack.shape[1:]
        dtype = stack.dtype
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


def build_aggregation(plan: Plan, layout: Layout) -> VectorAggregation | None:
    """The plan's rule; None for the plain mean, which needs to see nobody's gradient by itself."""
    way = plan.strategy.aggregate
    tolerance = plan.strategy.byzantine_tolerance
    if way == "mean":
        return None
    if len(set(plan.batch_sizes)) > 1:
        raise MisfitError(
            f"aggregate {way} gives no worker a weight, but the batches differ: {plan.batch_sizes}",
            "give every worker the same batch_size, or use --aggregate mean, which weights them",
        )
    rule = builtin_aggregate(way, tolerance) or load_function(way, what="aggregate")
    return VectorAggregation(way, rule, layout, min_workers_for(way, tolerance))


@dataclass(frozen=True, slots=True)
class RobustMean:
    """In place of a mean (strategies/means.py): gather everybody's vector, then combine."""

    collective: Collective
    vector: Tensor
    combining: VectorAggregation
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
    combining = build_aggregation(plan, layout)
    if combining is None:
        return None
    assert links.collective is not None, "combining needs a collective"
    return RobustMean(links.collective, vector, combining)
