"""How much faster is each run than the one with the fewest workers, and can one be sure of it? Pure.

Runs of the same plan, but for its seed, are repeats of each other. Two plans are compared round by
round: the first run with a seed against the other's first run with that seed, and so on. With three
rounds there is an interval, and a sentence; with fewer nobody can say. The statistics are the report's.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.plan.codec import Json
from paceline.report.assess import speed_in_words
from paceline.report.statistics import Interval, fit_amdahl, mean_interval, quotient_interval

ENOUGH = 3  # rounds, before a spread is worth a bar


@dataclass(frozen=True, slots=True)
class Repeat:
    seed: int
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One chosen run with its repeats, oldest first; itself too, unless it is still at work."""

    run: str
    mode: str
    workers: int
    plan: str  # its whole text but for name and seed: equal for repeats
    samples_per_s: float | None  # of this run alone
    repeats: tuple[Repeat, ...] = ()

    @property
    def rates(self) -> list[float]:
        if self.repeats:
            return [repeat.samples_per_s for repeat in self.repeats]
        return [] if self.samples_per_s is None else [self.samples_per_s]


def baseline(groups: Sequence[Group]) -> Group | None:
    """The fewest workers; of several the one that was chosen first."""
    known = [group for group in groups if group.rates and group.workers > 0]
    return min(known, key=lambda group: group.workers, default=None)


def speeds(groups: Sequence[Group]) -> dict[str, dict[str, Json]]:
    base = baseline(groups)
    return {group.run: _speed(group, base) for group in groups}


def _speed(group: Group, base: Group | None) -> dict[str, Json]:
    rates = group.rates
    found: dict[str, Json] = {
        "repeats": len(group.repeats),
        "throughput": _estimate(statistics.fmean(rates), _sure(rates)) if rates else None,
        "speedup": None,
        "efficiency": None,
        "in_words": "not measured",
    }
    if not rates or base is None:
        return found
    if group.plan == base.plan:
        words = "the baseline" if group.run == base.run else "the same plan as the baseline"
        return {**found, **_quotient(1.0, None, group, base), "in_words": words}
    mine, theirs = rounds(group.repeats, base.repeats)
    if len(mine) < ENOUGH:
        shown, interval = statistics.median(rates) / statistics.median(base.rates), None
        words = f"not known: {len(mine)} rounds with the same seeds, and {ENOUGH} are needed"
    else:
        shown, interval = statistics.median(mine) / statistics.median(theirs), quotient_interval(mine, theirs)
        words = speed_in_words(shown, interval)
    return {**found, **_quotient(shown, interval, group, base), "in_words": words}


def rounds(mine: Sequence[Repeat], base: Sequence[Repeat]) -> tuple[list[float], list[float]]:
    """Pairs with the same seed, in the order in which they ran."""
    waiting = list(base)
    pairs = []
    for repeat in mine:
        other = next((one for one in waiting if one.seed == repeat.seed), None)
        if other is not None:
            waiting.remove(other)
            pairs.append((repeat.samples_per_s, other.samples_per_s))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def sentences(groups: Sequence[Group], found: Mapping[str, Mapping[str, Json]]) -> list[Json]:
    """What may be said of each run but the first one, in words."""
    base = baseline(groups)
    said: list[Json] = []
    for group in groups:
        speedup = found[group.run]["speedup"]
        if base is None or group.plan == base.plan or not isinstance(speedup, dict):
            continue
        text = f"{group.run} made {speedup['value']:.2f} times the samples a second of {base.run}"
        if speedup["low"] is not None:
            text += f" (95 %: {speedup['low']:.2f} to {speedup['high']:.2f})"
        said.append(f"{text}: {found[group.run]['in_words']}.")
    return said


def scaling(groups: Sequence[Group], found: Mapping[str, Mapping[str, Json]]) -> list[Json]:
    """Amdahl's law by mode, where one worker and two other numbers of workers were chosen."""
    base = baseline(groups)
    if base is None or base.workers != 1:
        return []
    fits: list[Json] = []
    for mode in dict.fromkeys(group.mode for group in groups if group.workers > 1):
        mine = [group for group in groups if group.mode == mode]
        points = [
            (group.workers, float(speedup["value"]))
            for group in mine
            if isinstance(speedup := found[group.run]["speedup"], dict)
        ]
        if (fit := fit_amdahl(points)) is not None:
            most = max(workers for workers, _ in points)
            curve: list[Json] = [[workers, fit.speedup(workers)] for workers in range(1, most + 1)]
            fits.append({"mode": mode, "serial": fit.serial, "limit": fit.limit, "curve": curve})
    return fits


def _quotient(shown: float, interval: Interval | None, group: Group, base: Group) -> dict[str, Json]:
    share = base.workers / group.workers if group.workers else 1.0
    return {"speedup": _estimate(shown, interval), "efficiency": _estimate(shown, interval, share)}


def _sure(values: Sequence[float]) -> Interval | None:
    return mean_interval(values) if len(values) >= ENOUGH else None


def _estimate(value: float, interval: Interval | None, times: float = 1.0) -> dict[str, Json]:
    low, high = (None, None) if interval is None else (interval.low * times, interval.high * times)
    return {"value": value * times, "low": low, "high": high}
