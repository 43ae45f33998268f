"""What do the runs of a benchmark say side by side? Measured runs in, rows with speedups out. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence

from paceline import __version__
from paceline.benchmark import caveats
from paceline.benchmark.compared import Benchmark, Row
from paceline.benchmark.measured import Measured
from paceline.report.assess import best_named
from paceline.report.comparison import Estimate, Machine, Quality
from paceline.report.statistics import Interval, difference_interval, mean_interval, quotient_interval

Runs = Mapping[str, Sequence[Measured]]  # by name, in the order of the rounds; everybody in every round


def compare(runs: Runs, *, baseline: str, subject: str, task: str, machine: Machine) -> Benchmark:
    """Every contender beside the baseline; `subject` is the one whose speedup was asked for."""
    assert baseline in runs, "there is a baseline"
    assert subject in runs, "there is a subject"
    assert len({len(mine) for mine in runs.values()}) == 1, "everybody is in every round"
    quality = best_named([{**run.metrics} for mine in runs.values() for run in mine])
    names = [baseline, *(name for name in runs if name != baseline)]
    rows = {name: _row(runs[name], runs[baseline], quality) for name in names}
    batches = {row.global_batch for row in rows.values()}
    base, mine = rows[baseline], rows[subject]
    started = sorted(
        (r.started_unix_s, f"{name}-{n + 1}") for name, rs in runs.items() for n, r in enumerate(rs)
    )
    return Benchmark(
        paceline=__version__,
        task=task,
        baseline=baseline,
        subject=subject,
        num_workers=mine.workers,
        speedup=mine.speedup_total.value,
        efficiency=mine.efficiency_total.value,
        speedup_steady=None if mine.speedup_steady is None else mine.speedup_steady.value,
        efficiency_steady=None if mine.efficiency_steady is None else mine.efficiency_steady.value,
        accuracy_lost=_lost(base, mine, quality),
        repeats=len(runs[baseline]),
        global_batch=batches.pop() if len(batches) == 1 else None,
        quality=quality,
        rows=rows,
        says=tuple(caveats.says(rows, baseline, subject, quality)),
        warnings=tuple(caveats.warnings(rows, baseline, quality, machine)),
        how=caveats.how(rows),
        machine=machine,
        order=tuple(name for _, name in started),
    )


def _row(mine: Sequence[Measured], base: Sequence[Measured], quality: Quality | None) -> Row:
    totals, first = [run.total_s for run in mine], mine[0]
    total_s = statistics.median(totals)
    typical = min(mine, key=lambda run: abs(run.total_s - total_s))
    steady = [run.steady_samples_per_s for run in mine]
    begun = [run.first_step_s for run in mine]
    total = _quotient([run.total_s for run in base], totals, is_base=mine is base)
    assert total is not None, "every run took its time"
    # Seconds for a sample: the quotient of times is that of rates, upside down.
    rate = _quotient(_inverse(base), _inverse(mine), is_base=mine is base)
    return Row(
        name=first.name,
        title=first.title,
        framework=first.framework,
        workers=first.workers,
        global_batch=first.global_batch,
        worker_batch=first.worker_batch,
        steps=typical.steps,
        samples=typical.samples,
        epochs=typical.epochs,
        total_s=total_s,
        total_s_all=tuple(totals),
        first_step_s=_median(begun),
        first_step_s_all=tuple(begun),
        steady_samples_per_s=_median(steady),
        steady_samples_per_s_all=tuple(steady),
        warm_up=first.warm_up,
        speedup_total=total,
        efficiency_total=_over(total, first.workers),
        speedup_steady=rate,
        efficiency_steady=None if rate is None else _over(rate, first.workers),
        metrics={name: _mean([run.metrics.get(name) for run in mine]) for name in first.metrics},
        quality=_quality(mine, quality),
        quality_difference=None if mine is base else _difference(mine, base, quality),
        history=typical.history,
        cluster=typical.cluster,
        facts=typical.facts,
    )


def _inverse(runs: Sequence[Measured]) -> list[float] | None:
    rates = [run.steady_samples_per_s for run in runs]
    return [1 / rate for rate in rates if rate] if all(rates) else None


def _quotient(base: list[float] | None, mine: list[float] | None, *, is_base: bool) -> Estimate | None:
    if base is None or mine is None:
        return None
    value = statistics.median(base) / statistics.median(mine)
    return _estimate(value, None if is_base else quotient_interval(base, mine))


def _over(estimate: Estimate, workers: int) -> Estimate:
    low, high = (None if end is None else end / workers for end in (estimate.low, estimate.high))
    return Estimate(value=estimate.value / workers, low=low, high=high)


def _quality(mine: Sequence[Measured], quality: Quality | None) -> Estimate | None:
    values = _values(mine, quality)
    return None if values is None else _estimate(statistics.fmean(values), mean_interval(values))


def _difference(
    mine: Sequence[Measured], base: Sequence[Measured], quality: Quality | None
) -> Estimate | None:
    ours, theirs = _values(mine, quality), _values(base, quality)
    if ours is None or theirs is None:
        return None
    value = statistics.fmean(ours) - statistics.fmean(theirs)
    return _estimate(value, difference_interval(ours, theirs))


def _values(runs: Sequence[Measured], quality: Quality | None) -> list[float] | None:
    """None: nobody asks, or one of them is not a number."""
    if quality is None:
        return None
    found = [run.metrics.get(quality.name) for run in runs]
    known = [value for value in found if value is not None and math.isfinite(value)]
    return known if len(known) == len(found) else None


def _lost(base: Row, mine: Row, quality: Quality | None) -> float | None:
    if quality is None or not quality.is_share or base.quality is None or mine.quality is None:
        return None
    return base.quality.value - mine.quality.value


def _estimate(value: float, interval: Interval | None) -> Estimate:
    if interval is None:
        return Estimate(value=value)
    return Estimate(value=value, low=interval.low, high=interval.high)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known and len(known) == len(values) else None
