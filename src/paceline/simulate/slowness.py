"""How slow is a worker at many steps at once? sync/stragglers.py, step by step the same, as arrays.

A simulator asks millions of times, so the dice are computed for a whole range
of steps. Every number is bit for bit what `Stragglers.at` says; a test holds
the two together.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.sync.dice import draw_u64
from paceline.sync.stragglers import StragglerRule

Floats: TypeAlias = NDArray[np.float64]
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def slowness(
    rules: Sequence[StragglerRule], seed: int, worker: int, first: int, count: int
) -> tuple[Floats, Floats]:
    """(factors, delays in seconds) of the worker's steps first … first+count-1."""
    steps = np.arange(first, first + count)
    factors, delays_s = np.ones(count), np.zeros(count)
    for number, rule in enumerate(rules):
        if rule.worker is not None and rule.worker != worker:
            continue
        hit = steps >= rule.first_step
        if rule.end_step is not None:
            hit &= steps < rule.end_step
        if rule.steps is not None:
            hit &= np.isin(steps, rule.steps)
        if rule.probability < 1.0:
            hit &= _uniform(seed, number, worker, steps) < rule.probability
        factors[hit] *= _factors(rule, steps[hit])
        delays_s[hit] += rule.delay_s
    return factors, delays_s


def _factors(rule: StragglerRule, steps: NDArray[np.int64]) -> Floats:
    """StragglerRule.factor_at for all steps."""
    done = steps - rule.first_step + 1
    rising = 1.0 + (rule.factor - 1.0) * done / max(1, rule.ramp)
    return np.where(done >= rule.ramp, rule.factor, rising)


def _uniform(seed: int, number: int, worker: int, steps: NDArray[np.int64]) -> Floats:
    """draw_uniform(seed, number, worker, step) for all steps; unsigned arithmetic wraps as it should."""
    state = np.full(len(steps), draw_u64(seed, number, worker), dtype=np.uint64)
    state = _mix(state + (steps.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
