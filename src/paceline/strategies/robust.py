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

Aggregate = Callable[[Tensor], Tensor]


def mean(stack: Tensor) -> Tensor:
    """Summed in the order of the rows, as an all-reduce sums in the order of ranks."""
    total = stack[0].clone()
    for row in stack[1:]:
        total.add_(row)
    return total.div_(len(stack))


def median(stack: Tensor) -> Tensor:
    """The middle of each coordinate; of an even number, the mean of the middle two."""
    return _middle_mean(stack, lambda finite: (finite - 1).div(2, rounding_mode="floor"))


def trimmed_mean(stack: Tensor, tolerance: int) -> Tensor:
    """The mean of each coordinate without its `tolerance` largest and smallest values."""
    # Values that were removed as non-finite are not trimmed a second time.
    return _middle_mean(stack, lambda finite: tolerance - (len(stack) - finite))


def krum(stack: Tensor, tolerance: int) -> Tensor:
    """The gradient whose squared distances to its N-f-2 nearest others have the smallest sum."""
    distances = torch.full((len(stack), len(stack)), torch.inf, dtype=torch.float64, device=stack.device)
    for row in range(len(stack)):
        for other in range(row):
            distance = torch.linalg.vector_norm(stack[row] - stack[other], dtype=torch.float64)
            distances[row, other] = distances[other, row] = distance.square()
    # NaN and infinity are far from every vector, including themselves.
    nearest = distances.nan_to_num(nan=torch.inf, posinf=torch.inf).sort(dim=1).values
    scores = nearest[:, : max(1, len(stack) - tolerance - 2)].sum(dim=1)
    best = float(scores.min())
    if best == torch.inf:
        return torch.full_like(stack[0], torch.nan)
    # Two mutual nearest neighbours have the same score: take the smaller vector, independent of the rank.
    return reduce(_smaller, [stack[row] for row, score in enumerate(scores.tolist()) if score == best])


def _middle_mean(stack: Tensor, trim_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Per coordinate: remove non-finite values, trim some at each end, average the rest.

    `trim_of` maps the number of finite values to the number trimmed at each end.
    """
    is_finite = stack.isfinite()
    finite = is_finite.sum(dim=0)
    ordered = stack.where(is_finite, torch.inf).sort(dim=0).values
    trim = trim_of(finite).clamp_(min=0)
    position = torch.arange(len(stack), device=stack.device).unsqueeze(1)
    kept = (position >= trim) & (position < finite - trim)
    average = ordered.where(kept, 0.0).sum(dim=0) / kept.sum(dim=0)
    low, high = (ordered.gather(0, at.clamp(min=0).unsqueeze(0))[0] for at in (trim, finite - trim - 1))
    # Rounding must not move a mean out of the range of its values. The mean of no values is 0/0.
    return torch.where(kept.any(dim=0), average.clamp(low, high), torch.nan)


def _smaller(vector: Tensor, other: Tensor) -> Tensor:
    """The vector that is smaller at the first difference."""
    differing = (vector != other).nonzero()
    if not len(differing):
        return vector
    first = int(differing[0])
    return vector if bool(vector[first] < other[first]) else other


def builtin_aggregate(name: str, tolerance: int) -> Aggregate | None:
    """The function of a rule in plan.catalog.AGGREGATES."""
    rules: dict[str, Aggregate] = {
        "mean": mean,
        "median": median,
        "trimmed-mean": partial(trimmed_mean, tolerance=tolerance),
        "krum": partial(krum, tolerance=tolerance),
    }
    return rules.get(name)


@dataclass(frozen=True, slots=True)
class VectorAggregation:
    """An aggregation rule for vectors in an arena's layout."""

    name: str
    rule: Aggregate
    layout: Layout
    fewest: int  # gradients that the promised tolerance needs

    def into(self, target: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Aggregate the vectors' parameters and buffers into `target`; its tail stays as it is."""
        if len(vectors) < self.fewest:
            raise TrainingError(
                f"{self.name} needs {self.fewest} gradients, but only {len(vectors)} workers are left",
                "start the run again from its last checkpoint, with all workers or a smaller tolerance",
            )
        for pieces in (self.layout.parameters, self.layout.buffers):
            if pieces:
                stack = torch.stack([_joined(vector, pieces) for vector in vectors])
                _write_pieces(target, pieces, self._aggregated(stack))
        return target

    def _aggregated(self, stack: Tensor) -> Tensor:
        shape = stack.shape[1:]
        dtype = stack.dtype
        result: object = self.rule(stack)
        if not isinstance(result, Tensor) or result.shape != shape or result.dtype != dtype:
            seen = repr(result)
            if isinstance(result, Tensor):
                seen = f"{result.dtype} of shape {tuple(result.shape)}"
            raise MisfitError(
                f"{self.name} returned {seen[:200]}, but it must return {dtype} of shape {tuple(shape)}",
                "it is given a tensor of shape (workers, d) and returns one of shape (d,) and the same dtype",
            )
        if bool(result.isnan().any()):
            raise TrainingError(
                f"{self.name} of {len(stack)} gradients is NaN: too few of them are finite",
                "lower lr or set clip_norm if the loss diverged; raise byzantine_tolerance if workers are "
                "faulty",
            )
        return result


def _joined(vector: Tensor, pieces: Sequence[Piece]) -> Tensor:
    return torch.cat([piece.view(vector).reshape(-1) for piece in pieces])


def _write_pieces(target: Tensor, pieces: Sequence[Piece], joined: Tensor) -> None:
    sizes = [piece.shape.numel() for piece in pieces]
    for piece, values in zip(pieces, torch.split(joined, sizes), strict=True):
        piece.view(target).copy_(values.view(piece.shape))


def build_aggregation(plan: Plan, layout: Layout) -> VectorAggregation | None:
    """The plan's rule; None for the plain mean, which needs no single worker's gradient."""
    name = plan.strategy.aggregate
    tolerance = plan.strategy.byzantine_tolerance
    if name == "mean":
        return None
    if len(set(plan.batch_sizes)) > 1:
        raise MisfitError(
            f"aggregate {name} does not weight workers, but the batch sizes differ: {plan.batch_sizes}",
            "give every worker the same batch_size, or use --aggregate mean, which weights them",
        )
    rule = builtin_aggregate(name, tolerance) or load_function(name, noun="aggregate")
    return VectorAggregation(name, rule, layout, min_workers_for(name, tolerance))


@dataclass(frozen=True, slots=True)
class RobustMean:
    """A `Mean` (strategies/means.py) that gathers all workers' vectors and aggregates them."""

    collective: Collective
    vector: Tensor
    aggregation: VectorAggregation
    is_lossy = False

    def reduce(self) -> Traffic:
        vectors, traffic = self.collective.gather(self.vector)
        self.aggregation.into(self.vector, vectors)
        start = self.aggregation.layout.tail_start
        # Any worker may request a stop: the flags are averaged, so that one of them is enough.
        self.vector[start:] = torch.stack([vector[start:] for vector in vectors]).mean(dim=0)
        return traffic

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...


def robust_mean_of(plan: Plan, links: Links, vector: Tensor, layout: Layout) -> RobustMean | None:
    """None when the plan takes the plain mean."""
    aggregation = build_aggregation(plan, layout)
    if aggregation is None:
        return None
    assert links.collective is not None, "aggregation needs a collective"
    return RobustMean(links.collective, vector, aggregation)
