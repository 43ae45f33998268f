"""Robust statistics: quantiles, trends, change points.

The slope is the Theil-Sen estimator: the median of the slopes between all pairs of points. A
change is detected by a two-sided CUSUM over the deviations from the median, in units of their
spread, and is dated to where the sum began to grow. A few outliers affect neither. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], share: float) -> float | None:
    """None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    # Not low + part × (high − low): this form equals Prometheus to the last bit.
    part = place - low
    return ordered[low] * (1 - part) + ordered[high] * part


def median(values: Sequence[float]) -> float | None:
    return quantile(values, 0.5)


MAX_POINTS = 60  # pairs grow with the square
DRIFT = 0.5  # in spreads: smaller shifts are noise
THRESHOLD = 8.0  # in spreads, summed up
MIN_POINTS = 8
MAX_FALL = 0.9  # of the median: beyond it, a line no longer describes how far a curve fell


@dataclass(frozen=True, slots=True)
class Trend:
    slope_per_s: float
    share: float  # of the median, over the whole window; 0 where the median is 0
    change_s: float | None  # when a step up or down began
    change_share: float | None  # how far it went


def fit_trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """None with too few points."""
    if len(points) < MIN_POINTS:
        return None
    sampled = (
        points
        if len(points) <= MAX_POINTS
        else [points[i * len(points) // MAX_POINTS] for i in range(MAX_POINTS)]
    )
    slope = theil_sen(sampled)
    middle = median([value for _, value in sampled]) or 0.0
    span_s = points[-1][0] - points[0][0]
    at = change_point([value for _, value in points])
    change_share = None if at is None else _step(points, at)
    return Trend(
        slope,
        slope * span_s / abs(middle) if middle else 0.0,
        None if at is None else points[at][0],
        change_share,
    )


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    slopes = [
        (value - before) / (at - then)
        for i, (then, before) in enumerate(points)
        for at, value in points[i + 1 :]
        if at > then
    ]
    return median(slopes) or 0.0


def change_point(values: Sequence[float]) -> int | None:
    """The index of the first level shift, if any."""
    if len(values) < MIN_POINTS:
        return None
    base = values[: max(MIN_POINTS // 2, len(values) // 3)]
    level = median(base) or 0.0
    spread = 1.4826 * (median([abs(v - level) for v in base]) or 0.0)
    spread = max(spread, abs(level) * 0.01, 1e-12)
    up = down = 0.0
    up_since = down_since = 0
    for i, value in enumerate(values):
        z = (value - level) / spread
        up = max(0.0, up + z - DRIFT)
        down = max(0.0, down - z - DRIFT)
        up_since = i + 1 if up == 0 else up_since
        down_since = i + 1 if down == 0 else down_since
        if max(up, down) > THRESHOLD:
            return up_since if up > down else down_since
    return None


def _step(points: Sequence[tuple[float, float]], at: int) -> float | None:
    before = median([value for _, value in points[:at]])
    after = median([value for _, value in points[at:]])
    if not before or after is None:
        return None
    return (after - before) / abs(before)


def describe_trend(name: str, trend: Trend, clock: str | None, cause: str | None) -> str:
    """`throughput fell 18 % at 12:04:31, when worker-3 slowed`; unknown parts are left out."""
    if trend.change_s is not None and trend.change_share is not None and abs(trend.change_share) >= 0.05:
        verb = "rose" if trend.change_share > 0 else "fell"
        when = f" at {clock}" if clock else ""
        why = f", when {cause}" if cause else ""
        return f"{name} {verb} {_percent(trend.change_share)}{when}{why}"
    if abs(trend.share) < 0.05 or not math.isfinite(trend.share):
        return f"{name} is steady"
    if trend.share <= -MAX_FALL:
        return f"{name} falls to a fraction of its value over the trend window"
    verb = "rises" if trend.share > 0 else "falls"
    return f"{name} {verb} slowly, {_percent(trend.share)} over the trend window"


def _percent(share: float) -> str:
    return f"{abs(share) * 100:.0f} %"
