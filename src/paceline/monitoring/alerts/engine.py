"""Alert engine: inactive → pending → firing → resolved, as Prometheus evaluates its rules.

The identity of an alert is its rule and labels: it stays the same alert for as long as it is
active, however often it is evaluated. It fires when its conditions have held for `for`, and is
kept while `keep_firing_for` runs or until `clear_when` holds.

`Memory` keeps the samples of each series as far back as some rule reads. A series without a
sample at the newest evaluation has ended: it has no newest value, but its samples stay in their
windows. Pure: the time and the samples are given.
"""

import hashlib
import math
import operator
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from paceline.monitoring.alerts.rules import Compare, Condition, Reading, Reduce, Rule, Rules
from paceline.monitoring.metrics.catalog import Labels, Sample
from paceline.monitoring.metrics.statistics import quantile

Point = tuple[float, float]  # seconds, value
Values = dict[Labels, float]


class Points:
    """One series, in 16 bytes a sample; times only ever grow."""

    __slots__ = ("_first", "_times", "_values")

    def __init__(self) -> None:
        self._first = 0  # earlier samples are expired, and removed in batches
        self._times = array("d")
        self._values = array("d")

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
    """The samples that rules read."""

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
            series = self._series.get(name)
            if series is not None:
                if labels not in series:
                    series[labels] = Points()
                series[labels].add(now_s, value)
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
        selector = dict(reading.where)
        values: Values = {}
        for labels, points in self._series.get(reading.metric, {}).items():
            if selector and not _matches(labels, selector):
                continue
            value = self._value(reading, points)
            if value is not None:
                values[labels] = value
        if reading.reduce is Reduce.ABSENT:
            return {} if values else {reading.where: 1.0}
        return values

    def _value(self, reading: Reading, points: Points) -> float | None:
        assert points.newest is not None, "alerts without samples were removed"
        newest_s, newest = points.newest
        match reading.reduce:
            case Reduce.LAST | Reduce.ABSENT:
                return newest if newest_s == self._now_s else None
            case Reduce.AGE:
                return self._now_s - newest if newest_s == self._now_s else None
            case _:
                begin_s = self._now_s - reading.window_s
                inside = points.since(begin_s)
                return _reduce(reading, inside, begin_s, self._now_s) if inside else None


def _matches(labels: Labels, selector: Mapping[str, str]) -> bool:
    own = dict(labels)
    return all(own.get(name) == value for name, value in selector.items())


def _reduce(reading: Reading, points: Sequence[Point], begin_s: float, end_s: float) -> float | None:
    values = [value for _, value in points]
    simple: dict[Reduce, Callable[[], float | None]] = {
        Reduce.AVG: lambda: math.fsum(values) / len(values),
        Reduce.MIN: lambda: min(values),
        Reduce.MAX: lambda: max(values),
        Reduce.SUM: lambda: math.fsum(values),
        Reduce.COUNT: lambda: float(len(values)),
        Reduce.QUANTILE: lambda: quantile(values, reading.quantile),
        Reduce.FORECAST: lambda: _forecast(points, end_s, reading.ahead_s),
        Reduce.INCREASE: lambda: _extrapolated_increase(points, begin_s, end_s, is_counter=True),
        Reduce.DELTA: lambda: _extrapolated_increase(points, begin_s, end_s, is_counter=False),
    }
    if reading.reduce is Reduce.RATE:
        increase = _extrapolated_increase(points, begin_s, end_s, is_counter=True)
        return None if increase is None else increase / reading.window_s
    return simple[reading.reduce]()


def _extrapolated_increase(
    points: Sequence[Point], begin_s: float, end_s: float, *, is_counter: bool
) -> float | None:
    """The increase in the window, extrapolated to its ends (Prometheus, extrapolatedRate)."""
    if len(points) < 2:
        return None
    first_s, first = points[0]
    last_s, last = points[-1]
    grown = last - first
    if is_counter:
        grown += sum(before for (_, before), (_, after) in pairwise(points) if after < before)
    lasted_s = last_s - first_s
    between_s = lasted_s / (len(points) - 1)
    to_start_s = first_s - begin_s
    to_end_s = end_s - last_s
    if is_counter and grown > 0 and first >= 0:
        to_start_s = min(to_start_s, lasted_s * (first / grown))  # a counter was never below zero
    reach_s = lasted_s
    for missing_s in (to_start_s, to_end_s):
        reach_s += missing_s if missing_s < between_s * 1.1 else between_s / 2
    return grown * (reach_s / lasted_s)


def _forecast(points: Sequence[Point], now_s: float, ahead_s: float) -> float | None:
    """The least-squares line at `now_s + ahead_s` (Prometheus, predict_linear)."""
    if len(points) < 2:
        return None
    times = [t - now_s for t, _ in points]
    values = [value for _, value in points]
    count = len(points)
    sum_t = math.fsum(times)
    sum_v = math.fsum(values)
    covariance = math.fsum(t * v for t, v in zip(times, values, strict=True)) - sum_t * sum_v / count
    variance = math.fsum(t * t for t in times) - sum_t * sum_t / count
    if variance == 0:
        return None
    slope = covariance / variance
    return sum_v / count - slope * sum_t / count + slope * ahead_s


MAX_RESOLVED = 2_000  # resolved alerts kept for notifiers
MAX_VALUES = 40  # values per alert, newest last, for a sparkline

_OPERATORS: dict[Compare, Callable[[float, float], bool]] = {
    Compare.ABOVE: operator.gt,
    Compare.AT_LEAST: operator.ge,
    Compare.BELOW: operator.lt,
    Compare.AT_MOST: operator.le,
    Compare.EQUALS: operator.eq,
    Compare.DIFFERS: operator.ne,
}


class State(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"  # was pending, and never fired


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    rule: Rule
    labels: Labels
    state: State
    value: float
    limit: float | None
    active_s: float  # since when its conditions have held
    fired_s: float | None = None
    resolved_s: float | None = None
    keeps_since_s: float | None = None  # its conditions no longer hold, but it is kept
    values: tuple[tuple[float, float], ...] = ()  # (time, value), the newest while its conditions held

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.rule.name, self.labels)

    def fires_in_s(self, now_s: float) -> float | None:
        if self.state is not State.PENDING:
            return None
        return max(0.0, self.active_s + self.rule.hold_s - now_s)


@dataclass(frozen=True, slots=True)
class Transition:
    at_s: float
    to: State
    alert: Alert


@dataclass(frozen=True, slots=True)
class _Hit:
    value: float
    limit: float


class AlertEngine:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._memory = Memory(rules)
        self._active: dict[tuple[str, Labels], Alert] = {}
        self.resolved: list[Alert] = []  # newest last

    @property
    def active(self) -> list[Alert]:
        """Pending and firing ones, in the order of their rules."""
        return list(self._active.values())

    def evaluate(self, now_s: float, samples: Iterable[Sample]) -> list[Transition]:
        self._memory.take(now_s, samples)
        return [t for rule in self._rules.rules for t in self._evaluate(rule, now_s)]

    def end(self, now_s: float) -> list[Transition]:
        """The run is over: resolve all alerts."""
        return [self._resolve(key, alert, now_s) for key, alert in list(self._active.items())]

    def _evaluate(self, rule: Rule, now_s: float) -> list[Transition]:
        hits = self._hits(rule)
        transitions: list[Transition] = []
        for labels, hit in hits.items():
            key = (rule.name, labels)
            alert = self._active.get(key)
            if alert is None:
                alert = Alert(
                    rule=rule,
                    labels=labels,
                    state=State.PENDING,
                    value=hit.value,
                    limit=hit.limit,
                    active_s=now_s,
                )
                if rule.hold_s > 0:
                    transitions.append(Transition(now_s, State.PENDING, alert))
            values = (*alert.values[1 - MAX_VALUES :], (now_s, hit.value))
            alert = replace(alert, value=hit.value, limit=hit.limit, keeps_since_s=None, values=values)
            if alert.state is State.PENDING and now_s - alert.active_s >= rule.hold_s:
                alert = replace(alert, state=State.FIRING, fired_s=now_s)
                transitions.append(Transition(now_s, State.FIRING, alert))
            self._active[key] = alert
        for key in [key for key in self._active if key[0] == rule.name and key[1] not in hits]:
            transitions += self._without_hit(rule, key, now_s)
        return transitions

    def _without_hit(self, rule: Rule, key: tuple[str, Labels], now_s: float) -> list[Transition]:
        alert = self._active[key]
        if alert.state is State.FIRING and rule.keep_firing_s > 0:
            since_s = now_s if alert.keeps_since_s is None else alert.keeps_since_s
            if now_s - since_s < rule.keep_firing_s:
                self._active[key] = replace(alert, keeps_since_s=since_s)
                return []
        return [self._resolve(key, alert, now_s)]

    def _resolve(self, key: tuple[str, Labels], alert: Alert, now_s: float) -> Transition:
        del self._active[key]
        if alert.state is State.PENDING:
            return Transition(now_s, State.CANCELLED, replace(alert, state=State.CANCELLED))
        resolved = replace(alert, state=State.RESOLVED, resolved_s=now_s)
        self.resolved.append(resolved)
        del self.resolved[:-MAX_RESOLVED]
        return Transition(now_s, State.RESOLVED, resolved)

    def _hits(self, rule: Rule) -> dict[Labels, _Hit]:
        by_condition = [self._holding(condition) for condition in rule.conditions]
        hits = by_condition[0]
        for other in by_condition[1:]:
            if rule.is_any:
                hits = {**{labels: hit for labels, hit in other.items() if labels not in hits}, **hits}
            else:
                matching = {_project(labels, rule.by) for labels in other}
                hits = {labels: hit for labels, hit in hits.items() if _project(labels, rule.by) in matching}
        return {**hits, **self._not_cleared(rule, hits)}

    def _not_cleared(self, rule: Rule, hits: dict[Labels, _Hit]) -> dict[Labels, _Hit]:
        """Firing alerts whose conditions no longer hold, but whose `clear_when` does not hold yet either."""
        if rule.clear_when is None:
            return {}
        cleared = {_project(labels, rule.by) for labels in self._holding(rule.clear_when)}
        firing = {
            _project(labels, rule.by)
            for (name, labels), alert in self._active.items()
            if name == rule.name and alert.state is State.FIRING
        }
        values = self._memory.read(rule.conditions[0].left)
        return {
            labels: _Hit(value, 0.0)
            for labels, value in values.items()
            if labels not in hits and (group := _project(labels, rule.by)) in firing and group not in cleared
        }

    def _holding(self, condition: Condition) -> dict[Labels, _Hit]:
        left = self._memory.read(condition.left)
        compare = _OPERATORS[condition.compare]
        limits = self._limits(condition, left)
        return {
            labels: _Hit(value, limits[labels])
            for labels, value in left.items()
            if labels in limits and compare(value, limits[labels])
        }

    def _limits(self, condition: Condition, left: Values) -> Values:
        if not isinstance(condition.limit, Reading):
            return dict.fromkeys(left, condition.limit)
        values = self._memory.read(condition.limit)
        return {labels: condition.times * value for labels, value in values.items()}


def _project(labels: Labels, names: tuple[str, ...]) -> Labels:
    """An absent label and an empty one are the same, as for Prometheus."""
    return tuple((name, value) for name, value in labels if name in names and value)


def fingerprint(rule: str, labels: Labels) -> str:
    """Stable id of an alert, in every evaluation and process."""
    return hashlib.sha256(repr((rule, labels)).encode()).hexdigest()[:12]
