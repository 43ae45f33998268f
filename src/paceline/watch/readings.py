"""What does a metric read now? The values of its window, reduced exactly as Prometheus does it.

Each series keeps its samples as far back as some rule looks. A series that was not
told this time has ended: it has no newest value any more, but what is in a window stays.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from paceline.watch.quantiles import quantile
from paceline.watch.rules import Reading, Reduce, Rules
from paceline.watch.sample import Labels, Sample

Point = tuple[float, float]  # seconds, value
Values = dict[Labels, float]


class Points:
    """One series, in 16 bytes a sample; times only ever grow."""

    __slots__ = ("_first", "_times", "_values")

    def __init__(self) -> None:
        self._first = 0  # what is before is forgotten, and removed now and then
        self._times, self._values = array("d"), array("d")

    def add(self, at_s: float, value: float) -> None:
        self._times.append(at_s)
        self._values.append(value)

    def forget(self, before_s: float) -> None:
        self._first = bisect_left(self._times, before_s, lo=self._first)
        if self._first > 64 and self._first > len(self._times) // 8:
            del self._times[: self._first], self._values[: self._first]
            self._first = 0

    @property
    def newest(self) -> Point | None:
        return (self._times[-1], self._values[-1]) if self._first < len(self._times) else None

    def since(self, begin_s: float) -> list[Point]:
        begin = bisect_left(self._times, begin_s, lo=self._first)
        return list(zip(self._times[begin:], self._values[begin:], strict=True))


class Memory:
    """The samples that rules look at."""

    def __init__(self, rules: Rules) -> None:
        self._windows: dict[str, float] = {}
        for rule in rules.rules:
            for condition in (*rule.conditions, *([rule.clear_when] if rule.clear_when else [])):
                for reading in (condition.left, condition.limit):
                    if isinstance(reading, Reading):
                        known = self._windows.get(reading.metric, 0.0)
                        self._windows[reading.metric] = max(known, reading.window_s)
        self._series: dict[str, dict[Labels, Points]] = {name: {} for name in self._windows}
        self._now_s = -math.inf

    def take(self, now_s: float, samples: Iterable[Sample]) -> None:
        self._now_s = now_s
        for name, labels, value in samples:
            mine = self._series.get(name)
            if mine is not None:
                if labels not in mine:
                    mine[labels] = Points()
                mine[labels].add(now_s, value)
        for name, window_s in self._windows.items():
            self._forget(self._series[name], now_s - window_s)

    @staticmethod
    def _forget(series: dict[Labels, Points], before_s: float) -> None:
        for labels, points in list(series.items()):
            points.forget(before_s)
            if points.newest is None:
                del series[labels]

    def read(self, reading: Reading) -> Values:
        """The value of each series that has one."""
        wanted = dict(reading.where)
        found: Values = {}
        for labels, points in self._series.get(reading.metric, {}).items():
            if wanted and not _matches(labels, wanted):
                continue
            value = self._value(reading, points)
            if value is not None:
                found[labels] = value
        if reading.reduce is Reduce.ABSENT:
            return {} if found else {reading.where: 1.0}
        return found

    def _value(self, reading: Reading, points: Points) -> float | None:
        assert points.newest is not None, "what has no sample any more was forgotten"
        newest_s, newest = points.newest
        match reading.reduce:
            case Reduce.LAST | Reduce.ABSENT:
                return newest if newest_s == self._now_s else None
            case Reduce.AGE:
                return self._now_s - newest if newest_s == self._now_s else None
            case _:
                begin_s = self._now_s - reading.window_s
                inside = points.since(begin_s)
                return _reduced(reading, inside, begin_s, self._now_s) if inside else None


def _matches(labels: Labels, wanted: Mapping[str, str]) -> bool:
    mine = dict(labels)
    return all(mine.get(name) == value for name, value in wanted.items())


def _reduced(reading: Reading, points: Sequence[Point], begin_s: float, end_s: float) -> float | None:
    values = [value for _, value in points]
    simple: dict[Reduce, Callable[[], float | None]] = {
        Reduce.AVG: lambda: math.fsum(values) / len(values),
        Reduce.MIN: lambda: min(values),
        Reduce.MAX: lambda: max(values),
        Reduce.SUM: lambda: math.fsum(values),
        Reduce.COUNT: lambda: float(len(values)),
        Reduce.QUANTILE: lambda: quantile(values, reading.quantile),
        Reduce.FORECAST: lambda: _forecast(points, end_s, reading.ahead_s),
        Reduce.INCREASE: lambda: _extrapolated(points, begin_s, end_s, is_counter=True),
        Reduce.DELTA: lambda: _extrapolated(points, begin_s, end_s, is_counter=False),
    }
    if reading.reduce is Reduce.RATE:
        increase = _extrapolated(points, begin_s, end_s, is_counter=True)
        return None if increase is None else increase / reading.window_s
    return simple[reading.reduce]()


def _extrapolated(points: Sequence[Point], begin_s: float, end_s: float, *, is_counter: bool) -> float | None:
    """How much it grew in the window, as if the samples reached its ends (Prometheus, extrapolatedRate)."""
    if len(points) < 2:
        return None
    (first_s, first), (last_s, last) = points[0], points[-1]
    grown = last - first
    if is_counter:
        grown += sum(before for (_, before), (_, after) in pairwise(points) if after < before)
    lasted_s = last_s - first_s
    between_s = lasted_s / (len(points) - 1)
    to_start_s, to_end_s = first_s - begin_s, end_s - last_s
    if is_counter and grown > 0 and first >= 0:
        to_start_s = min(to_start_s, lasted_s * (first / grown))  # a counter was never below zero
    reach_s = lasted_s
    for missing_s in (to_start_s, to_end_s):
        reach_s += missing_s if missing_s < between_s * 1.1 else between_s / 2
    return grown * (reach_s / lasted_s)


def _forecast(points: Sequence[Point], now_s: float, ahead_s: float) -> float | None:
    """Where the straight line of least squares is then (Prometheus, predict_linear)."""
    if len(points) < 2:
        return None
    times, values = [t - now_s for t, _ in points], [value for _, value in points]
    count = len(points)
    sum_t, sum_v = math.fsum(times), math.fsum(values)
    covariance = math.fsum(t * v for t, v in zip(times, values, strict=True)) - sum_t * sum_v / count
    variance = math.fsum(t * t for t in times) - sum_t * sum_t / count
    if variance == 0:
        return None
    slope = covariance / variance
    return sum_v / count - slope * sum_t / count + slope * ahead_s
