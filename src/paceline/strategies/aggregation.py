"""How do N gradients become one, if some of them may be lies? Pure functions of a stack of shape (N, d).

Median and trimmed mean (Yin 2018, arXiv 1803.01498) look at each coordinate
alone, krum (Blanchard 2017, arXiv 1703.02757) picks one whole gradient. None
depends on the order of the rows. No honest gradient is NaN or infinite, so such
a value is put away first, as one of the `tolerance` bad ones; where nothing is
left, the result is NaN.
"""

from collections.abc import Callable
from functools import partial, reduce

import torch
from torch import Tensor

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


def built_in(name: str, tolerance: int) -> Aggregate | None:
    """The function of a way in plan.catalog.AGGREGATES."""
    ways: dict[str, Aggregate] = {
        "mean": mean,
        "median": median,
        "trimmed-mean": partial(trimmed_mean, tolerance=tolerance),
        "krum": partial(krum, tolerance=tolerance),
    }
    return ways.get(name)
