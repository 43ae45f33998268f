"""Alert rules as data: conditions on metrics, hold times, severities, inhibitions, notifiers.

One YAML file holds the rules (rule_file.py); our engine (engine.py) and Prometheus
(metrics/provisioning.py) evaluate the same ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from paceline.monitoring.metrics.catalog import Labels


class Severity(IntEnum):
    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Reduce(StrEnum):
    """Aggregation of the values in a window; comments give the Prometheus names."""

    LAST = "last"  # the newest
    AVG = "avg"  # avg_over_time
    MIN = "min"  # min_over_time
    MAX = "max"  # max_over_time
    SUM = "sum"  # sum_over_time
    COUNT = "count"  # count_over_time
    QUANTILE = "quantile"  # quantile_over_time
    INCREASE = "increase"  # of a counter
    RATE = "rate"  # of a counter, per second
    DELTA = "delta"  # of a gauge
    AGE = "age"  # seconds since the moment that the value names: time() - value
    FORECAST = "forecast"  # predict_linear: where a straight line through the window will be
    ABSENT = "absent"  # 1 where there is no such series


class Compare(StrEnum):
    ABOVE = "above"
    AT_LEAST = "at_least"
    BELOW = "below"
    AT_MOST = "at_most"
    EQUALS = "equals"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A number made from a metric, for each of its series."""

    metric: str
    where: Labels = ()  # the series that have these labels
    reduce: Reduce = Reduce.LAST
    window_s: float = 0.0
    quantile: float = 0.0
    ahead_s: float = 0.0  # forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    left: Reading
    compare: Compare
    limit: float | Reading  # a number, or another reading
    times: float = 1.0  # that reading, multiplied


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    severity: Severity
    conditions: tuple[Condition, ...]
    is_any: bool = False  # one is enough; else all
    by: tuple[str, ...] = ("run",)  # labels by which the series of several conditions belong together
    hold_s: float = 0.0  # `for`
    keep_firing_s: float = 0.0
    clear_when: Condition | None = None  # hysteresis: once it fires, it ends only when this holds
    component: str = "progress"  # of the health score
    summary: str = ""
    description: str = ""

    @property
    def runbook(self) -> str:
        return f"docs/runbooks/{self.name}.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inhibition:
    """While `source` fires, alerts of `targets` with the same labels `equal` are not notified."""

    source: str
    targets: tuple[str, ...]
    equal: tuple[str, ...] = ("run",)


class NotifierKind(StrEnum):
    TERMINAL = "terminal"
    LOG = "log"
    WEBHOOK = "webhook"
    COMMAND = "command"
    SMTP = "smtp"
    ALERTMANAGER = "alertmanager"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierSetting:
    name: str
    kind: NotifierKind
    min_severity: Severity = Severity.WARNING
    most_per_minute: int = 20
    retries: int = 3
    timeout_s: float = 5.0
    options: Mapping[str, str] = field(default_factory=dict)  # url, path, command, host, from, to …


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    rules: tuple[Rule, ...]
    inhibitions: tuple[Inhibition, ...] = ()
    notifiers: tuple[NotifierSetting, ...] = ()
    repeat_s: float = 3600.0  # alerts that still fire are sent again
    group_wait_s: float = 0.0  # alerts within this time are sent in one message
    group_interval_s: float = 0.0  # between two messages of a notifier

    def metrics(self) -> frozenset[str]:
        """Every metric that a rule reads."""
        names = set[str]()
        for rule in self.rules:
            for condition in (*rule.conditions, *([rule.clear_when] if rule.clear_when else [])):
                names.add(condition.left.metric)
                if isinstance(condition.limit, Reading):
                    names.add(condition.limit.metric)
        return frozenset(names)

    def named(self, name: str) -> Rule | None:
        return next((rule for rule in self.rules if rule.name == name), None)
