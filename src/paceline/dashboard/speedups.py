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
from paceline.report.comparison import Estimate
from paceline.report.statistics import Amdahl, Interval, fit_amdahl, mean_interval, quotient_interval

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of one group, and beside the baseline."""

    repeats: int
    throughput: Estimate | None = None
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    in_words: str = "not measured"

    def told(self) -> dict[str, Json]:
        return {
            "repeats": self.repeats,
            "throughput": _told(self.throughput),
            "speedup": _told(self.speedup),
            "efficiency": _told(self.efficiency),
            "in_words": self.in_words,
        }


def speeds(groups: Sequence[Group]) -> dict[str, Speed]:
    base = baseline(groups)
    return {group.run: _speed(group, base) for group in groups}


def _speed(group: Group, base: Group | None) -> Speed:
    rates = group.rates
    if not rates or base is None:
        return Speed(repeats=len(group.repeats))
    shown, interval, words = _against(group, base)
    share = base.workers / group.workers if group.workers else 1.0
    return Speed(
        repeats=len(group.repeats),
        throughput=_estimate(statistics.fmean(rates), mean_interval(rates) if len(rates) >= ENOUGH else None),
        speedup=_estimate(shown, interval),
        efficiency=_estimate(shown, interval, share),
        in_words=words,
    )


def _against(group: Group, base: Group) -> tuple[float, Interval | None, str]:
    """How many times as fast, where that lies, and what may be said of it."""
    if group.plan == base.plan:
        return 1.0, None, "the baseline" if group.run == base.run else "the same plan as the baseline"
    mine, theirs = rounds(group.repeats, base.repeats)
    if len(mine) < ENOUGH:
        words = f"not known: {len(mine)} rounds with the same seeds, and {ENOUGH} are needed"
        return statistics.median(group.rates) / statistics.median(base.rates), None, words
    shown, interval = statistics.median(mine) / statistics.median(theirs), quotient_interval(mine, theirs)
    return shown, interval, speed_in_words(shown, interval)


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


def sentences(groups: Sequence[Group], found: Mapping[str, Speed]) -> list[str]:
    """What may be said of each run but the first one, in words."""
    base = baseline(groups)
    said = []
    for group in groups:
        speedup = found[group.run].speedup
        if base is None or group.plan == base.plan or speedup is None:
            continue
        text = f"{group.run} made {speedup.value:.2f} times the samples a second of {base.run}"
        if speedup.low is not None and speedup.high is not None:
            text += f" (95 %: {speedup.low:.2f} to {speedup.high:.2f})"
        said.append(f"{text}: {found[group.run].in_words}.")
    return said


@dataclass(frozen=True, slots=True)
class Fit:
    mode: str
    law: Amdahl
    most: int  # workers

    def told(self) -> dict[str, Json]:
        curve: list[Json] = [[workers, self.law.speedup(workers)] for workers in range(1, self.most + 1)]
        return {"mode": self.mode, "serial": self.law.serial, "limit": self.law.limit, "curve": curve}


def scaling(groups: Sequence[Group], found: Mapping[str, Speed]) -> list[Fit]:
    """Amdahl's law by mode, where one worker and two other numbers of workers were chosen."""
    base = baseline(groups)
    if base is None or base.workers != 1:
        return []
    fits = []
    for mode in dict.fromkeys(group.mode for group in groups if group.workers > 1):
        points = [
            (group.workers, speedup.value)
            for group in groups
            if group.mode == mode and (speedup := found[group.run].speedup) is not None
        ]
        if (law := fit_amdahl(points)) is not None:
            fits.append(Fit(mode, law, max(workers for workers, _ in points)))
    return fits


def _estimate(value: float, interval: Interval | None, times: float = 1.0) -> Estimate:
    if interval is None:
        return Estimate(value=value * times)
    return Estimate(value=value * times, low=interval.low * times, high=interval.high * times)


def _told(found: Estimate | None) -> Json:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}
