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
CRITICAL_CAP, NO_LEADER_CAP = 40, 20
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
        capped = "" if self.cap is None else f", at most {self.cap} while something is critical"
        return f"{self.score} = 100{parts}{capped}"

    def told(self) -> dict[str, Json]:
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
    return "good" if score >= 90 else "fair" if score >= 70 else "poor" if score > CRITICAL_CAP else "bad"


def compute_health(alerts: Sequence[Alert], *, has_data: bool, summaries: dict[str, str]) -> Health:
    """`summaries`: what each alert says, by fingerprint."""
    if not has_data:
        return Health(None, (), None, {})
    firing = [alert for alert in alerts if alert.state is State.FIRING]
    found = [
        Penalty(cost(a), a.rule.component, a.rule.name, summaries.get(a.fingerprint, a.rule.name))
        for a in firing
    ]
    found.sort(key=lambda p: (-p.points, p.rule, p.why))
    caps = [CRITICAL_CAP] if any(a.rule.severity is Severity.CRITICAL for a in firing) else []
    caps += [NO_LEADER_CAP] if any(a.rule.name == NO_LEADER for a in firing) else []
    plain = max(0, 100 - sum(p.points for p in found))
    cap = min(caps, default=None)
    components = {
        name: max(0, 100 - sum(p.points for p in found if p.component == name)) for name in COMPONENTS
    }
    return Health(plain if cap is None else min(plain, cap), tuple(found), cap, components)


def cost(alert: Alert) -> int:
    match alert.rule.severity:
        case Severity.INFO:
            return 3
        case Severity.CRITICAL:
            return 30
        case Severity.WARNING:
            return 10 + round(10 * _beyond(alert.value, alert.limit))


def _beyond(value: float, limit: float | None) -> float:
    """How far past its limit, from 0 to 1: twice the limit, or half of it, is as far as it counts."""
    if limit is None or limit == 0:
        return 0.0
    far = value / limit - 1 if value > limit else 2 * (1 - value / limit)
    return min(1.0, max(0.0, far))


# An alert that is silenced, inhibited by another, or the work of an injected fault still
# has its state; it is shown, and nobody is notified of it.

MAX_SPARKLINES = 12  # alerts whose values are told too: with hundreds of workers there may be hundreds


def summary_of(alert: Alert) -> str:
    return _filled(alert.rule.summary, alert)


def inhibited_by(alert: Alert, active: Sequence[Alert], rules: Rules) -> str | None:
    """The rule of a firing alert that mutes this one; None: nothing does."""
    mine = dict(alert.labels)
    for inhibition in rules.inhibitions:
        if alert.rule.name not in inhibition.targets:
            continue
        for source in active:
            if source.rule.name != inhibition.source or source.state is not State.FIRING:
                continue
            theirs = dict(source.labels)
            if all(mine.get(name) == theirs.get(name) for name in inhibition.equal):
                return source.rule.name
    return None


def is_silenced(alert: Alert, silences: Sequence[Mapping[str, object]], now_s: float) -> bool:
    worker = dict(alert.labels).get("worker", "")
    return any(
        float(str(one["until_s"])) > now_s
        and str(one.get("rule") or "") in ("", alert.rule.name)
        and str(one.get("worker") or "") in ("", worker)
        for one in silences
    )


def alerts_to_dicts(
    engine: AlertEngine, rules: Rules, figures: Figures, *, most_over: int | None = 20
) -> list[dict[str, Json]]:
    """Firing first, then pending, then the newest that are over; None: all that are known."""
    active = engine.active
    listed = sorted(
        active, key=lambda a: (a.state is not State.FIRING, -a.rule.severity, a.active_s, a.labels)
    )
    over = (
        engine.resolved
        if most_over is None
        else engine.resolved[len(engine.resolved) - min(most_over, len(engine.resolved)) :]
    )
    found = [alert_to_dict(alert, active, rules, figures) for alert in (*listed, *reversed(over))]
    for one in found[MAX_SPARKLINES:]:
        one["values"] = []
    return found


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
        "description": _filled(alert.rule.description, alert),
        "runbook": alert.rule.runbook,
        "component": alert.rule.component,
        "silenced": is_silenced(alert, figures.track.silences, figures.now_s),
        "inhibited_by": inhibited_by(alert, active, rules),
        "injected": figures.is_injected(dict(alert.labels)),
    }


def _seconds(unix_s: float, began_unix_s: float) -> float:
    return round(unix_s - began_unix_s, 6)


def _filled(text: str, alert: Alert) -> str:
    limit = "?" if alert.limit is None else _short(alert.limit)
    return text.format_map(_KeepUnknown({**dict(alert.labels), "value": _short(alert.value), "limit": limit}))


class _KeepUnknown(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
