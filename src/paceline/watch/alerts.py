"""Which alerts are there now? inactive → pending → firing → resolved, as Prometheus evaluates its rules.

An alert is known by its rule and labels: as long as it lasts it is one, however often
it is evaluated. It fires when its conditions have held for `for`, and is kept while
`keep_firing_for` runs or until `clear_when` holds. Pure: told the time and the samples.
"""

import hashlib
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from paceline.watch.readings import Memory, Values
from paceline.watch.rules import Compare, Condition, Reading, Rule, Rules
from paceline.watch.sample import Labels, Sample

MOST_RESOLVED = 2_000  # of which somebody may still have to be told
MOST_VALUES = 40  # of one alert, newest last: what a small picture shows

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
    CANCELLED = "cancelled"  # it was pending, and never fired


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    rule: Rule
    labels: Labels
    state: State
    value: float
    limit: float | None
    active_s: float  # since when its conditions hold
    fired_s: float | None = None
    resolved_s: float | None = None
    keeps_since_s: float | None = None  # the conditions hold no more, but it is kept
    values: tuple[tuple[float, float], ...] = ()  # the newest while its conditions held: when, and how much

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
        self.resolved: list[Alert] = []  # newest last; as many as are worth showing

    @property
    def active(self) -> list[Alert]:
        """Pending and firing ones, in the order of their rules."""
        return list(self._active.values())

    def evaluate(self, now_s: float, samples: Iterable[Sample]) -> list[Transition]:
        self._memory.take(now_s, samples)
        return [t for rule in self._rules.rules for t in self._evaluate(rule, now_s)]

    def end(self, now_s: float) -> list[Transition]:
        """The run is over: nothing of it is wrong any more."""
        return [self._resolve(key, alert, now_s) for key, alert in list(self._active.items())]

    def _evaluate(self, rule: Rule, now_s: float) -> list[Transition]:
        hits = self._hits(rule)
        made: list[Transition] = []
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
                    made.append(Transition(now_s, State.PENDING, alert))
            values = (*alert.values[1 - MOST_VALUES :], (now_s, hit.value))
            alert = replace(alert, value=hit.value, limit=hit.limit, keeps_since_s=None, values=values)
            if alert.state is State.PENDING and now_s - alert.active_s >= rule.hold_s:
                alert = replace(alert, state=State.FIRING, fired_s=now_s)
                made.append(Transition(now_s, State.FIRING, alert))
            self._active[key] = alert
        for key in [key for key in self._active if key[0] == rule.name and key[1] not in hits]:
            made += self._without_hit(rule, key, now_s)
        return made

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
        done = replace(alert, state=State.RESOLVED, resolved_s=now_s)
        self.resolved.append(done)
        del self.resolved[:-MOST_RESOLVED]
        return Transition(now_s, State.RESOLVED, done)

    def _hits(self, rule: Rule) -> dict[Labels, _Hit]:
        found = [self._holding(condition) for condition in rule.conditions]
        hits = found[0]
        for other in found[1:]:
            if rule.is_any:
                hits = {**{labels: hit for labels, hit in other.items() if labels not in hits}, **hits}
            else:
                there = {_only(labels, rule.by) for labels in other}
                hits = {labels: hit for labels, hit in hits.items() if _only(labels, rule.by) in there}
        return {**hits, **self._not_cleared(rule, hits)}

    def _not_cleared(self, rule: Rule, hits: dict[Labels, _Hit]) -> dict[Labels, _Hit]:
        """Those that fire, whose conditions hold no more, but whose `clear_when` does not hold yet either."""
        if rule.clear_when is None:
            return {}
        cleared = {_only(labels, rule.by) for labels in self._holding(rule.clear_when)}
        firing = {
            _only(labels, rule.by)
            for (name, labels), alert in self._active.items()
            if name == rule.name and alert.state is State.FIRING
        }
        values = self._memory.read(rule.conditions[0].left)
        return {
            labels: _Hit(value, 0.0)
            for labels, value in values.items()
            if labels not in hits and (mine := _only(labels, rule.by)) in firing and mine not in cleared
        }

    def _holding(self, condition: Condition) -> dict[Labels, _Hit]:
        left, compare = self._memory.read(condition.left), _OPERATORS[condition.compare]
        limits = self._limits(condition, left)
        return {
            labels: _Hit(value, limits[labels])
            for labels, value in left.items()
            if labels in limits and compare(value, limits[labels])
        }

    def _limits(self, condition: Condition, left: Values) -> Values:
        if not isinstance(condition.limit, Reading):
            return dict.fromkeys(left, condition.limit)
        found = self._memory.read(condition.limit)
        return {labels: condition.times * value for labels, value in found.items()}


def _only(labels: Labels, names: tuple[str, ...]) -> Labels:
    """An absent label and an empty one are the same, as for Prometheus."""
    return tuple((name, value) for name, value in labels if name in names and value)


def fingerprint(rule: str, labels: Labels) -> str:
    """The same for the same alert, whoever evaluates it and whenever."""
    return hashlib.sha256(repr((rule, labels)).encode()).hexdigest()[:12]
