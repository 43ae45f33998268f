"""Which value do so many of them not exceed? With a straight line between neighbours, as Prometheus does."""

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float | None:
    """None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    # In this form, not low + part × (high − low): so the parity with Prometheus is to the last bit.
    part = place - low
    return ordered[low] * (1 - part) + ordered[high] * part


def median(values: Sequence[float]) -> float | None:
    return quantile(values, 0.5)
