"""Health score of a run, and its alerts as dictionaries.

The score is 100 minus the cost of the firing alerts, and is always given with its arithmetic. A
firing warning costs 10 to 20, by how far its value is past its limit, an info 3, a pending alert
nothing. A critical one costs 30 and caps the score at 40, a missing leader at 20. Without any data
the score is unknown, not 0. See docs/concepts/health.md.

An alert that is silenced, inhibited by another, or caused by an injected fault keeps its state; it
is shown, and not notified. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.monitoring.alerts.engine import Alert, AlertEngine, State
from paceline.monitoring.alerts.rules import Rules, Severity
from paceline.monitoring.view.figures import Figures
from paceline.plan.codec import Json

COMPONENTS = ("progress", "workers", "coordinator", "resources", "freshness")
CRITICAL_CAP = 40
NO_LEADER_CAP = 20
NO_LEADER = "CoordinatorNoLeader"


@dataclass(frozen=True, slots=True)
class Penalty:
    points: int
    component: str
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Health:
    score: int | None
    penalties: tuple[Penalty, ...]
    cap: int | None
    components: dict[str, int]

    @property
    def arithmetic(self) -> str:
        if self.score is None:
            return "unknown: no data"
        parts = "".join(f" − {p.points} {p.why}" for p in self.penalties)
        capped = "" if self.cap is None else f", at most {self.cap} while a critical alert fires"
        return f"{self.score} = 100{parts}{capped}"

    def to_dict(self) -> dict[str, Json]:
        return {
            "score": self.score,
            "words": health_label(self.score),
            "arithmetic": self.arithmetic,
            "penalties": [
                {"points": p.points, "component": p.component, "rule": p.rule, "why": p.why}
                for p in self.penalties
            ],
            "components": dict(self.components),
            "cap": self.cap,
        }


def health_label(score: int | None) -> str:
    if score is None:
        return "unknown"
    if score >= 90:
        return "good"
    if score >= 70:
        return "fair"
    return "poor" if score > CRITICAL_CAP else "bad"


def compute_health(alerts: Sequence[Alert], *, has_data: bool, summaries: dict[str, str]) -> Health:
    """`summaries`: of each alert, by fingerprint."""
    if not has_data:
        return Health(None, (), None, {})
    firing = [alert for alert in alerts if alert.state is State.FIRING]
    penalties = [
        Penalty(cost(a), a.rule.component, a.rule.name, summaries.get(a.fingerprint, a.rule.name))
        for a in firing
    ]
    penalties.sort(key=lambda p: (-p.points, p.rule, p.why))
    caps = [CRITICAL_CAP] if any(a.rule.severity is Severity.CRITICAL for a in firing) else []
    caps += [NO_LEADER_CAP] if any(a.rule.name == NO_LEADER for a in firing) else []
    uncapped = max(0, 100 - sum(p.points for p in penalties))
    cap = min(caps, default=None)
    components = {
        name: max(0, 100 - sum(p.points for p in penalties if p.component == name)) for name in COMPONENTS
    }
    return Health(uncapped if cap is None else min(uncapped, cap), tuple(penalties), cap, components)


def cost(alert: Alert) -> int:
    match alert.rule.severity:
        case Severity.INFO:
            return 3
        case Severity.CRITICAL:
            return 30
        case Severity.WARNING:
            return 10 + round(10 * _excess(alert.value, alert.limit))


def _excess(value: float, limit: float | None) -> float:
    """How far past its limit, from 0 to 1, which is reached at twice or half of the limit."""
    if limit is None or limit == 0:
        return 0.0
    far = value / limit - 1 if value > limit else 2 * (1 - value / limit)
    return min(1.0, max(0.0, far))


MAX_SPARKLINES = 12  # alerts with values: with hundreds of workers there may be hundreds of alerts


def summary_of(alert: Alert) -> str:
    return _fill(alert.rule.summary, alert)


def inhibited_by(alert: Alert, active: Sequence[Alert], rules: Rules) -> str | None:
    """The rule of a firing alert that mutes this one; None: nothing does."""
    labels = dict(alert.labels)
    for inhibition in rules.inhibitions:
        if alert.rule.name not in inhibition.targets:
            continue
        for source in active:
            if source.rule.name != inhibition.source or source.state is not State.FIRING:
                continue
            source_labels = dict(source.labels)
            if all(labels.get(name) == source_labels.get(name) for name in inhibition.equal):
                return source.rule.name
    return None


def is_silenced(alert: Alert, silences: Sequence[Mapping[str, object]], now_s: float) -> bool:
    worker = dict(alert.labels).get("worker", "")
    return any(
        float(str(silence["until_s"])) > now_s
        and str(silence.get("rule") or "") in ("", alert.rule.name)
        and str(silence.get("worker") or "") in ("", worker)
        for silence in silences
    )


def alerts_to_dicts(
    engine: AlertEngine, rules: Rules, figures: Figures, *, max_resolved: int | None = 20
) -> list[dict[str, Json]]:
    """Firing alerts first, then pending, then the newest resolved ones (None: all of them)."""
    active = engine.active
    listed = sorted(
        active, key=lambda a: (a.state is not State.FIRING, -a.rule.severity, a.active_s, a.labels)
    )
    resolved = (
        engine.resolved
        if max_resolved is None
        else engine.resolved[len(engine.resolved) - min(max_resolved, len(engine.resolved)) :]
    )
    dicts = [alert_to_dict(alert, active, rules, figures) for alert in (*listed, *reversed(resolved))]
    for entry in dicts[MAX_SPARKLINES:]:
        entry["values"] = []
    return dicts


def alert_to_dict(alert: Alert, active: Sequence[Alert], rules: Rules, figures: Figures) -> dict[str, Json]:
    began = figures.track.started_unix_s
    labels: dict[str, Json] = {name: value for name, value in alert.labels if value}
    fires_in = alert.fires_in_s(began + figures.now_s)
    return {
        "fingerprint": alert.fingerprint,
        "rule": alert.rule.name,
        "severity": alert.rule.severity.word,
        "state": alert.state.value,
        "since_s": _seconds(alert.fired_s if alert.fired_s is not None else alert.active_s, began),
        "active_s": _seconds(alert.active_s, began),
        "resolved_s": None if alert.resolved_s is None else _seconds(alert.resolved_s, began),
        "fires_in_s": None if fires_in is None else round(fires_in, 3),
        "value": alert.value if math.isfinite(alert.value) else "nan",
        "threshold": alert.limit if alert.limit is None or math.isfinite(alert.limit) else "nan",
        "values": [
            [_seconds(at_s, began), float(f"{value:.6g}")]
            for at_s, value in alert.values
            if math.isfinite(value)
        ],
        "labels": labels,
        "summary": summary_of(alert),
        "description": _fill(alert.rule.description, alert),
        "runbook": alert.rule.runbook,
        "component": alert.rule.component,
        "silenced": is_silenced(alert, figures.track.silences, figures.now_s),
        "inhibited_by": inhibited_by(alert, active, rules),
        "injected": figures.is_injected(dict(alert.labels)),
    }


def _seconds(unix_s: float, began_unix_s: float) -> float:
    return round(unix_s - began_unix_s, 6)


def _fill(text: str, alert: Alert) -> str:
    limit = "?" if alert.limit is None else _short(alert.limit)
    return text.format_map(_KeepUnknown({**dict(alert.labels), "value": _short(alert.value), "limit": limit}))


class _KeepUnknown(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
