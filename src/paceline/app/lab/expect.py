"""What was promised, what was measured, and does it hold?"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expectation:
    what: str
    limit: str
    measured: str
    ok: bool


def at_most(what: str, measured: float, limit: float, unit: str) -> Expectation:
    return Expectation(what, f"at most {limit:g} {unit}", f"{measured:.4g} {unit}", measured <= limit)


def at_least(what: str, measured: float, limit: float, unit: str = "") -> Expectation:
    return Expectation(
        what, f"at least {limit:g} {unit}".strip(), f"{measured:.4g} {unit}".strip(), measured >= limit
    )


def told(what: str, measured: str) -> Expectation:
    """A number that nothing was promised about."""
    return Expectation(what, "told, not judged", measured, ok=True)


def exactly(what: str, measured: object, limit: object) -> Expectation:
    return Expectation(what, str(limit), str(measured), measured == limit)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above; of nothing, infinity: it never came."""
    if not values:
        return float("inf")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
