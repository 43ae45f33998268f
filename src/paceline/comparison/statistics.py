"""Confidence intervals of 95 % from a few repeats.

Repeats come in rounds, in which every mode runs once with the same seed. So what
is estimated is a difference or a quotient within a round: what slows a whole
round down cancels out. The interval is Student's t over the rounds. With fewer than three rounds
there is none: t of one degree of freedom is 12.7, which makes intervals such as 0.01 to 500.
See docs/concepts/what-is-measured.md.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
MIN_ROUNDS = 3
SMALLEST = 0.02  # a quotient nearer to 1 than this is not worth a change, however sure it is


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def with_point(self, value: float) -> "Interval":
        return Interval(min(self.low, value), max(self.high, value))


def t_quantile(freedom: int) -> float:
    """Student's t that holds CONFIDENCE of the distribution between minus and plus itself."""
    # Imported here, and not scipy.stats: this takes a fifth of its time. scipy comes with scikit-learn.
    from scipy.special import stdtrit

    assert freedom >= 1, "one value alone has no spread"
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Interval of the mean; None for fewer than MIN_ROUNDS values."""
    if len(values) < MIN_ROUNDS:
        return None
    mean = statistics.fmean(values)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half)


def difference_interval(values: Sequence[float], base: Sequence[float]) -> Interval | None:
    """Interval of the mean difference, in pairs of the same round."""
    return mean_interval([m - b for m, b in zip(values, base, strict=True)])


def quotient_interval(base: Sequence[float], values: Sequence[float]) -> Interval | None:
    """Of base / mine, in pairs of the same round; on logarithms, as times err by factors.

    It holds the quotient of the medians too, which is what is shown beside it.
    """
    interval = mean_interval([math.log(b / m) for b, m in zip(base, values, strict=True)])
    if interval is None:
        return None
    shown = statistics.median(base) / statistics.median(values)
    return Interval(math.exp(interval.low), math.exp(interval.high)).with_point(shown)


def is_different(quotient: Interval | None, *, shown: float) -> bool | None:
    """Whether a quotient of times differs from 1, and by enough to matter; None if undecided."""
    if quotient is None:
        return None
    return not quotient.holds(1.0) and abs(shown - 1) >= SMALLEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl:
    """speedup(N) = 1 / (serial + (1 - serial) / N), with the serial share that fits best."""

    serial: float

    def speedup(self, workers: float) -> float:
        return 1 / (self.serial + (1 - self.serial) / workers)

    @property
    def limit(self) -> float | None:
        """Speedup limit for any number of workers; None without a limit."""
        return 1 / self.serial if self.serial > 0 else None


def fit_amdahl(points: Sequence[tuple[int, float]]) -> Amdahl | None:
    """Least squares over (workers, speedup) on 1/speedup.

    None with fewer than two numbers of workers, and for what is slower than one worker alone: of
    that the law knows nothing.
    """
    pairs = [(1 - 1 / n, 1 / s - 1 / n) for n, s in points if n > 1]
    if len({n for n, _ in points if n > 1}) < 2:
        return None
    serial = sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)
    return Amdahl(serial=max(0.0, serial)) if serial <= 1.0 + 1e-9 else None
