"""Learning-rate schedule and early stopping: pure functions of the step and of past evaluations.

The rate rises over the first `warmup` steps in equal amounts, and then stays,
falls along a half cosine, or falls linearly; it would reach 0 one step after the
last. The factor depends only on the step whose gradient is applied: nothing is
saved, and a resumed or replayed run gets the same rates. Early stopping compares
evaluations: all workers that have the same numbers decide the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class RateShape(StrEnum):
    CONSTANT = "constant"
    COSINE = "cosine"
    LINEAR = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    shape: RateShape
    warmup: int  # steps
    steps: int  # of the whole run; a run that stops early has the same rates up to there

    def factor(self, step: int) -> float:
        """The factor of the learning rate for the gradient of this step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        match self.shape:
            case RateShape.CONSTANT:
                return 1.0
            case RateShape.COSINE:
                return (1.0 + math.cos(math.pi * progress)) / 2.0
            case RateShape.LINEAR:
                return 1.0 - progress


def best_index(values: Sequence[float | None], *, lower_is_better: bool) -> int | None:
    """The index of the best value, of equals the first; None and NaN are never best."""
    sign = 1.0 if lower_is_better else -1.0
    numbers = [(sign * v, i) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    return min(numbers)[1] if numbers else None


def evaluations_since_best(values: Sequence[float | None], *, lower_is_better: bool) -> int:
    """The number of evaluations after the best one; all of them, if none is a number."""
    best = best_index(values, lower_is_better=lower_is_better)
    return len(values) if best is None else len(values) - 1 - best
