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
    assert freedom >= 1, "one value alone has no spread"
    low, high = 0.0, 1.0
    while _t_share(high, freedom) < CONFIDENCE:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_share(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _t_share(t: float, freedom: int) -> float:
    """How much of the distribution lies within t of 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term = total = cosine if is_odd else 1.0
    for k in range(3 if is_odd else 2, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if is_odd:
        return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    return sine * total


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Where the mean lies; None for fewer than LEAST_ROUNDS values."""
    if len(values) < MIN_ROUNDS:
        return None
    mean = statistics.fmean(values)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half)


def difference_interval(mine: Sequence[float], base: Sequence[float]) -> Interval | None:
    """Of the mean difference, in pairs of the same round."""
    return mean_interval([m - b for m, b in zip(mine, base, strict=True)])


def quotient_interval(base: Sequence[float], mine: Sequence[float]) -> Interval | None:
    """Of base / mine, in pairs of the same round; on logarithms, as times err by factors.

    It holds the quotient of the medians too, which is what is shown beside it.
    """
    found = mean_interval([math.log(b / m) for b, m in zip(base, mine, strict=True)])
    if found is None:
        return None
    shown = statistics.median(base) / statistics.median(mine)
    return Interval(math.exp(found.low), math.exp(found.high)).with_point(shown)


def is_different(quotient: Interval | None, *, shown: float) -> bool | None:
    """Is a quotient of times really another than 1, and by enough to matter? None: nobody can say."""
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
        """What no number of workers goes beyond; None: there is no limit."""
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
