"""By how much is the learning rate multiplied at a step of the run?

It may rise over the first `warmup` steps, by equal amounts, and then stay,
fall along a half cosine, or fall in a straight line; either way it would be 0
one step after the last. A pure function of the step whose gradient is applied:
there is nothing to save, and a resumed or replayed run finds the same rates.
"""

import math
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
