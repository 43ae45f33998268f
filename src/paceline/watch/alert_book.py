"""What is said about an alert? Its sentence, whether it is muted, and by what. Pure.

An alert that is silenced, inhibited by another, or the work of an injected fault still
has its state; it is shown, and nobody is notified of it.
"""

import math
from collections.abc import Mapping, Sequence

from paceline.plan.codec import Json
from paceline.watch.alerts import Alert, AlertEngine, State
from paceline.watch.figures import Figures
from paceline.watch.rules import Rules

MOST_PICTURES = 12  # alerts whose values are told too: with hundreds of workers there may be hundreds


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


def told_alerts(
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
    found = [told(alert, active, rules, figures) for alert in (*listed, *reversed(over))]
    for one in found[MOST_PICTURES:]:
        one["values"] = []
    return found


def told(alert: Alert, active: Sequence[Alert], rules: Rules, figures: Figures) -> dict[str, Json]:
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
    return text.format_map(_Known({**dict(alert.labels), "value": _short(alert.value), "limit": limit}))


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
