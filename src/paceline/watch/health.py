"""How well is a run, in one number, and why? 100 less what its alerts cost, and never without the sum.

A warning that fires costs 10 to 20, by how far its value is past its limit, an info 3, a
pending one nothing. A critical one costs 30 and caps the score at 40, no leader at 20.
Without any data the score is unknown, not 0. See docs/concepts/health.md. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.plan.codec import Json
from paceline.watch.alerts import Alert, State
from paceline.watch.rules import Severity

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
            "words": word_of(self.score),
            "arithmetic": self.arithmetic,
            "penalties": [
                {"points": p.points, "component": p.component, "rule": p.rule, "why": p.why}
                for p in self.penalties
            ],
            "components": dict(self.components),
            "cap": self.cap,
        }


def word_of(score: int | None) -> str:
    if score is None:
        return "unknown"
    return "good" if score >= 90 else "fair" if score >= 70 else "poor" if score > CRITICAL_CAP else "bad"


def health(alerts: Sequence[Alert], *, has_data: bool, summaries: dict[str, str]) -> Health:
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
