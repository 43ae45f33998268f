"""How long does one gradient take a worker, before any straggler rule? As data, drawn with dice handed in.

The models are a closed set. `Recorded` repeats a run's own steps in their
order; when they run out it begins again with the second, because the first one
warms up. `Resampled` shuffles them, again without the first, in blocks, so that
slow phases stay together (a moving-block bootstrap).
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

Seconds: TypeAlias = NDArray[np.float64]
BLOCK = 8  # steps that a resampling keeps together


@dataclass(frozen=True, slots=True)
class Constant:
    step_s: float


@dataclass(frozen=True, slots=True)
class Uniform:
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Exponential:
    mean_s: float


@dataclass(frozen=True, slots=True)
class Lognormal:
    median_s: float
    sigma: float  # of the logarithm


@dataclass(frozen=True, slots=True)
class Recorded:
    steps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Resampled:
    blocks_of_s: tuple[float, ...]  # the recorded steps to take blocks of


StepTimes = Constant | Uniform | Exponential | Lognormal | Recorded | Resampled


def draw_s(
    model: StepTimes, dice: np.random.Generator, shared: np.random.Generator, first: int, count: int
) -> Seconds:
    """The steps first … first+count-1. Both dice have made the draws of all earlier steps, and no others.

    `shared` draws the same for every worker: what slowed a whole machine down slows it down again.
    """
    match model:
        case Constant(step_s):
            return np.full(count, step_s)
        case Uniform(low_s, high_s):
            return dice.uniform(low_s, high_s, count)
        case Exponential(mean_s):
            return dice.exponential(mean_s, count)
        case Lognormal(median_s, sigma):
            return dice.lognormal(np.log(median_s), sigma, count)
        case Recorded(steps_s):
            places = np.arange(first, first + count)
            again = places >= len(steps_s)
            places[again] = 1 + (places[again] - 1) % max(1, len(steps_s) - 1)
            return np.take(np.asarray(steps_s), places, mode="clip")
        case Resampled(blocks_of_s):
            assert first % BLOCK == 0, "whole blocks are drawn"
            warm = np.asarray(blocks_of_s[1:] or blocks_of_s)
            starts = shared.random(-(-count // BLOCK))
            blocks = (starts * len(warm)).astype(np.int64)[:, None] + np.arange(BLOCK)
            return np.take(warm, blocks.reshape(-1)[:count], mode="wrap")
        case _:
            assert_never(model)


def mean_s(model: StepTimes) -> float:
    """The expectation of one step."""
    match model:
        case Constant(step_s):
            return step_s
        case Uniform(low_s, high_s):
            return (low_s + high_s) / 2
        case Exponential(mean):
            return mean
        case Lognormal(median_s, sigma):
            return float(median_s * np.exp(sigma**2 / 2))
        case Recorded(steps) | Resampled(steps):
            return float(np.mean(steps))
        case _:
            assert_never(model)


def spread_around(name: str, mean: float) -> StepTimes:
    """A model with this mean, by the name that a user types; one of SPREADS."""
    match name:
        case "uniform":
            return Uniform(0.5 * mean, 1.5 * mean)
        case "exponential":
            return Exponential(mean)
        case "lognormal":
            return Lognormal(float(mean * np.exp(-0.125)), 0.5)
        case _:
            return Constant(mean)


SPREADS = ("constant", "uniform", "exponential", "lognormal")
