"""By how much is the learning rate multiplied at a step of the run?

It may rise over the first `warmup` steps, by equal amounts, and then stay,
fall along a half cosine, or fall in a straight line; either way it would be 0
one step after the last. A pure function of the step whose gradient is applied:
there is nothing to save, and a resumed or replayed run finds the same rates.
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
    steps: int  # of the whole run; a run that is stopped early had the rates of the whole

    def factor(self, step: int) -> float:
        """For the gradient of this step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        behind = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        match self.shape:
            case RateShape.CONSTANT:
                return 1.0
            case RateShape.COSINE:
                return (1.0 + math.cos(math.pi * behind)) / 2.0
            case RateShape.LINEAR:
                return 1.0 - behind


# Better is strictly better; what is no number is never better. Pure, so that all
# workers who saw the same numbers decide the same, also after a resume.


def best_index(values: Sequence[float | None], *, lower_is_better: bool) -> int | None:
    """The index of the best one, of equals the first; None: there is no number among them."""
    sign = 1.0 if lower_is_better else -1.0
    numbers = [(sign * v, i) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    return min(numbers)[1] if numbers else None


def evaluations_since_best(values: Sequence[float | None], *, lower_is_better: bool) -> int:
    """How many evaluations came after the best one; all of them, if none is a number."""
    best = best_index(values, lower_is_better=lower_is_better)
    return len(values) if best is None else len(values) - 1 - best
