"""Repeats of each mode summed up: measured runs in, cells with their intervals out. Pure."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from paceline.comparison.measurement import Measured, best_named
from paceline.comparison.schema import Cell, Curve, Estimate, Evaluated, Quality, Scaling, Stale, Target
from paceline.comparison.statistics import (
    MIN_ROUNDS,
    Interval,
    difference_interval,
    fit_amdahl,
    is_different,
    mean_interval,
    quotient_interval,
)
from paceline.events.performance import downsample, first_below

CURVE_POINTS = 150
NO_DIFFERENCE = "no significant difference"
FASTER = "significantly faster"
ONE_REPEAT = f"unknown: fewer than {MIN_ROUNDS} repeats"
INCONCLUSIVE = "inconclusive: the repeats differ too much"
LOST_POINTS = 0.02  # of accuracy: a difference that matters
LOST_SHARE = 0.05  # the same for a loss, as a share of the baseline's
CLOSE = 1.10  # a quotient of times further from 1 than this matters

Runs = Mapping[str, Sequence[Measured]]  # by label, in the order of the rounds


def quality_of(runs: Runs) -> Quality | None:
    """The test accuracy if there is one, another accuracy, or a loss; None: no metric that all have."""
    return best_named([run.metrics for group in runs.values() for run in group])


def evaluated_by(runs: Runs) -> Quality | None:
    """The same of what was evaluated on the way; None: some run was not."""
    every = [run.evaluations for group in runs.values() for run in group]
    return best_named([e.metrics for seen in every for e in seen]) if all(every) else None


def target_of(
    runs: Runs, *, wanted_loss: float | None = None, wanted_accuracy: float | None = None
) -> Target | None:
    """The requested target, or the best that every run reaches; None if some run reached none."""
    if wanted_loss is not None:
        return _training_target(wanted_loss, is_chosen=False)
    if wanted_accuracy is not None:
        return _accuracy_target(runs, wanted_accuracy)
    every = [run for group in runs.values() for run in group]
    judged = evaluated_by(runs)
    if judged is not None:
        return _evaluated_target(every, judged)
    lowest = [min((p.loss for p in run.points if math.isfinite(p.loss)), default=None) for run in every]
    values = [value for value in lowest if value is not None]
    return _training_target(slightly_above(max(values)), is_chosen=True) if values else None


def _training_target(value: float, *, is_chosen: bool) -> Target:
    return Target(what="training loss", value=value, is_evaluated=False, is_share=False, is_chosen=is_chosen)


def _accuracy_target(runs: Runs, value: float) -> Target | None:
    """Target of runs that are evaluated during training; None if their task has no accuracy."""
    judged = evaluated_by({label: group for label, group in runs.items() if group[0].evaluations})
    if judged is None or not judged.is_share:
        return None
    return Target(what=judged.name, value=value, is_evaluated=True, is_share=True, is_chosen=False)


def _evaluated_target(runs: Sequence[Measured], judged: Quality) -> Target | None:
    pick = max if judged.is_share else min
    best = []
    for run in runs:
        seen = [e.metrics[judged.name] for e in run.evaluations]
        best += [pick(known)] if (known := [v for v in seen if v is not None and math.isfinite(v)]) else []
    if not best:
        return None
    value = math.floor(min(best) * 1000) / 1000 if judged.is_share else slightly_above(max(best))
    return Target(what=judged.name, value=value, is_evaluated=True, is_share=judged.is_share, is_chosen=True)


def reached_s(run: Measured, target: Target) -> float | None:
    """When this run was first at the target; None: never."""
    if not target.is_evaluated:
        return first_below(run.points, target.value)
    for seen in run.evaluations:
        value = seen.metrics.get(target.what)
        if value is not None and (value >= target.value if target.is_share else value <= target.value):
            return seen.seconds
    return None


def assess(
    runs: Runs,
    baseline: str,
    quality: Quality | None,
    target: Target | None,
    *,
    training_samples: int | None = None,
) -> dict[str, Cell]:
    base = runs[baseline]
    return {
        label: _cell(label, group, base, quality, target, training_samples) for label, group in runs.items()
    }


def _cell(
    label: str,
    runs: Sequence[Measured],
    base: Sequence[Measured],
    quality: Quality | None,
    target: Target | None,
    training_samples: int | None,
) -> Cell:
    seconds = [run.seconds for run in runs]
    base_s = [run.seconds for run in base]
    median_s = statistics.median(seconds)
    workers = runs[0].plan.processes
    speedup = statistics.median(base_s) / median_s
    is_base = runs is base
    interval = None if is_base else quotient_interval(base_s, seconds)
    targets = [None if target is None else reached_s(run, target) for run in runs]
    typical = min(runs, key=lambda run: abs(run.seconds - median_s))
    return Cell(
        label=label,
        mode=runs[0].plan.mode,
        workers=workers,
        seconds=median_s,
        seconds_all=tuple(seconds),
        speedup=_estimate(speedup, interval),
        efficiency=_estimate(speedup / workers, interval, 1 / workers),
        speed_in_words="the baseline" if is_base else describe_speed(speedup, interval),
        samples_per_s=statistics.median(run.samples_per_s for run in runs),
        **_quality(runs, base, quality),
        loss=_mean([math.nan if run.loss is None else run.loss for run in runs]),
        target_s=_median(targets),
        target_s_all=tuple(targets),
        bytes_out=round(statistics.fmean(run.bytes_out for run in runs)),
        bytes_in=round(statistics.fmean(run.bytes_in for run in runs)),
        staleness=_stale(runs),
        phases=_phases(runs),
        metrics={name: _mean([run.metrics.get(name, math.nan) for run in runs]) for name in runs[0].metrics},
        epochs=None if training_samples is None else typical.samples / training_samples,
        curve=_curve(typical),
        evaluations=tuple(_finite(e) for e in typical.evaluations),
        data=typical.data,
        runs=tuple(run.name for run in runs),
    )


def scaling_of(cells: dict[str, Cell]) -> dict[str, Scaling]:
    """Scaling by mode, for modes run with several numbers of workers."""
    by_mode = {}
    for mode in dict.fromkeys(cell.mode for cell in cells.values()):
        own_cells = [cell for cell in cells.values() if cell.mode == mode]
        fit = fit_amdahl([(cell.workers, cell.speedup.value) for cell in own_cells])
        if fit is not None:
            by_mode[mode] = Scaling(mode=mode, serial=fit.serial, limit=fit.limit)
    return by_mode


class _QualityFields(TypedDict):
    quality: Estimate | None
    quality_all: tuple[float | None, ...]
    quality_difference: Estimate | None
    quality_in_words: str


def _quality(runs: Sequence[Measured], base: Sequence[Measured], quality: Quality | None) -> _QualityFields:
    if quality is None:
        return _QualityFields(
            quality=None, quality_all=(), quality_difference=None, quality_in_words="not measured"
        )
    values, base_values = ([run.metrics[quality.name] for run in group] for group in (runs, base))
    fields = _QualityFields(
        quality=None,
        quality_all=tuple(value if math.isfinite(value) else None for value in values),
        quality_difference=None,
        quality_in_words="the baseline",
    )
    if not all(map(math.isfinite, values)):
        return {**fields, "quality_in_words": "not a number: it diverged"}
    interval = mean_interval(values)
    if interval is not None and quality.is_share:  # no model is right more often than always
        interval = Interval(max(0.0, interval.low), min(1.0, interval.high))
    fields["quality"] = _estimate(statistics.fmean(values), interval)
    if runs is base or not all(map(math.isfinite, base_values)):
        return fields
    difference = statistics.fmean(values) - statistics.fmean(base_values)
    interval = difference_interval(values, base_values)
    fields["quality_difference"] = _estimate(difference, interval)
    matters = LOST_POINTS if quality.is_share else LOST_SHARE * abs(statistics.fmean(base_values))
    fields["quality_in_words"] = _describe_difference(difference, interval, quality, matters)
    return fields


def _describe_difference(
    difference: float, interval: Interval | None, quality: Quality, matters: float
) -> str:
    if interval is None:
        return ONE_REPEAT
    # Rounding alone can leave a difference that no one could see.
    if interval.holds(0.0) or abs(difference) < 1e-9:
        return INCONCLUSIVE if abs(difference) >= matters else NO_DIFFERENCE
    return "significantly better" if (difference > 0) == quality.is_share else "significantly worse"


def describe_speed(speedup: float, interval: Interval | None) -> str:
    match is_different(interval, shown=speedup):
        case None:
            return ONE_REPEAT
        case False:
            return NO_DIFFERENCE if 1 / CLOSE < speedup < CLOSE else INCONCLUSIVE
        case True:
            return FASTER if speedup > 1 else "significantly slower"


def _estimate(value: float, interval: Interval | None, times: float = 1.0) -> Estimate:
    if interval is None:
        return Estimate(value=value)
    return Estimate(value=value, low=interval.low * times, high=interval.high * times)


def _stale(runs: Sequence[Measured]) -> Stale | None:
    seen = [run.staleness for run in runs if run.staleness is not None]
    if not seen:
        return None
    counts = Counter[int]()
    for staleness in seen:
        counts.update({int(value): count for value, count in staleness.histogram.items()})
    mean = sum(value * count for value, count in counts.items()) / counts.total()
    return Stale(mean=mean, max=max(counts), histogram={str(v): counts[v] for v in sorted(counts)})


def _phases(runs: Sequence[Measured]) -> dict[str, float]:
    sums = {name: sum(run.phases_s[name] for run in runs) for name in runs[0].phases_s}
    total = sum(sums.values())
    return {name: value / total if total else 0.0 for name, value in sums.items()}


def _curve(run: Measured) -> Curve:
    points = downsample(run.points, CURVE_POINTS)
    return Curve(
        seconds=tuple(p.seconds for p in points),
        samples=tuple(p.samples for p in points),
        loss=tuple(p.loss if math.isfinite(p.loss) else None for p in points),
    )


def _finite(evaluated: Evaluated) -> Evaluated:
    metrics = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in evaluated.metrics.items()
    }
    return replace(evaluated, metrics=metrics)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float]) -> float | None:
    mean = statistics.fmean(values)
    return mean if math.isfinite(mean) else None


def slightly_above(value: float) -> float:
    """Rounded up to three digits, so that a run that reached it also reached the number shown."""
    if value <= 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return round(math.ceil(value / unit) * unit, 12)
