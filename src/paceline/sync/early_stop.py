"""Which of a run's evaluations was the best, and has it been waited for a better one long enough?

Better is strictly better; what is no number is never better. Pure, so that all
workers who saw the same numbers decide the same, also after a resume.
"""

import math
from collections.abc import Sequence


def best_of(values: Sequence[float | None], *, lower_is_better: bool) -> int | None:
    """The index of the best one, of equals the first; None: there is no number among them."""
    sign = 1.0 if lower_is_better else -1.0
    numbers = [(sign * v, i) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    return min(numbers)[1] if numbers else None


def waited(values: Sequence[float | None], *, lower_is_better: bool) -> int:
    """How many evaluations came after the best one; all of them, if none is a number."""
    best = best_of(values, lower_is_better=lower_is_better)
    return len(values) if best is None else len(values) - 1 - best
