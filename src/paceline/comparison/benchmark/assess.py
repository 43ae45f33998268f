"""Benchmark rows: measured runs in, speedups, efficiencies and warnings out. Pure."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from paceline import __version__
from paceline.comparison.benchmark.schema import Benchmark, Measured, Row
from paceline.comparison.measurement import best_named
from paceline.comparison.report import formatting
from paceline.comparison.schema import Estimate, Machine, Quality
from paceline.comparison.statistics import Interval, difference_interval, mean_interval, quotient_interval

ALLOWED_LOSS = 0.02  # of an accuracy
_ENOUGH_REPEATS = 3
_BUSY = 0.5  # of the processors at work before anything was started
_SHORT = 0.5  # a run whose start is more than this share of it shows its start

Rows = Mapping[str, Row]


def summarize(rows: Rows, baseline: str, subject: str, quality: Quality | None) -> Iterator[str]:
    yield _speed(rows[subject], rows[baseline])
    yield describe_batch(rows)
    if (text := _caveats_quality(rows[subject], rows[baseline], quality)) is not None:
        yield text


def describe_batch(rows: Rows) -> str:
    batches = {row.global_batch for row in rows.values()}
    if len(batches) > 1:
        listed = ", ".join(f"{row.title} {row.global_batch}" for row in rows.values())
        return f"The global batch was not the same for all: {listed}."
    (batch,) = batches
    shares = sorted({(row.workers, row.worker_batch) for row in rows.values()})
    each = ", ".join(f"{share} for each of {n}" if n > 1 else f"{share} for one" for n, share in shares)
    sides = "on both sides" if len(rows) == 2 else "on all sides"
    return f"The global batch was {batch} {sides}: {each}."


def _speed(row: Row, base: Row) -> str:
    total = (
        f"{row.title} with {row.workers} {'worker' if row.workers == 1 else 'workers'} took"
        f" {formatting.seconds(row.total_s)} in all, {base.title} {formatting.seconds(base.total_s)}:"
        f" a speedup of {formatting.times(row.speedup_total.value)},"
        f" efficiency {formatting.percent(row.efficiency_total.value)}."
    )
    if row.speedup_steady is None or row.efficiency_steady is None:
        return f"{total} The runs were too short for a steady rate."
    return (
        f"{total} After {row.warm_up} it was {formatting.times(row.speedup_steady.value)} as fast,"
        f" efficiency {formatting.percent(row.efficiency_steady.value)}."
    )


def _caveats_quality(row: Row, base: Row, quality: Quality | None) -> str | None:
    if quality is None or row.quality is None or base.quality is None or row.quality_difference is None:
        return None
    name = formatting.quality_name(quality).capitalize()
    own_quality = formatting.quality(row.quality.value, quality)
    both = f"{own_quality}, against {formatting.quality(base.quality.value, quality)}"
    unit = " points" if quality.is_share else ""
    return f"{name} was {both}: {formatting.quality_difference(row.quality_difference, quality)}{unit}."


def find_warnings(rows: Rows, baseline: str, quality: Quality | None, machine: Machine) -> Iterator[str]:
    repeats = len(rows[baseline].total_s_all)
    if len({row.global_batch for row in rows.values()}) > 1:
        yield describe_batch(rows)
    if len({row.samples for row in rows.values()}) > 1:
        listed = ", ".join(f"{row.title} {row.samples:,}" for row in rows.values())
        yield (
            "The contenders trained on different numbers of samples, so total times cover different "
            f"work: {listed}."
        )
    if repeats < _ENOUGH_REPEATS:
        known = "One repeat has no spread" if repeats == 1 else f"{repeats} repeats have wide intervals"
        yield f"{known}: a difference may be noise (--repeats {_ENOUGH_REPEATS})."
    if machine.load > _BUSY * machine.processors:
        yield (
            f"The machine was busy before the first run: {machine.load:.1f} processes were running on"
            f" {machine.processors} processors, so all times may be too long."
        )
    yield from _about_processors(rows, machine)
    yield from _about_starts(rows)
    yield from _about_quality(rows, baseline, quality)


def _about_processors(rows: Rows, machine: Machine) -> Iterator[str]:
    most = max(row.workers for row in rows.values())
    spread = any(row.cluster is not None and row.cluster.nodes > 1 for row in rows.values())
    if most > machine.processors and not spread:
        yield (
            f"{most} workers shared {machine.processors} processors, so they could not be {most} times as"
            " fast as one."
        )


def _about_starts(rows: Rows) -> Iterator[str]:
    slow = [
        row.title
        for row in rows.values()
        if row.first_step_s is not None and row.first_step_s > _SHORT * row.total_s
    ]
    if slow:
        yield (
            f"Most of the total time was spent before the first step ({', '.join(slow)}): total times "
            "measure startup, not training; train longer, or compare the steady rate."
        )


def _about_quality(rows: Rows, baseline: str, quality: Quality | None) -> Iterator[str]:
    if quality is None:
        yield "The contenders have no accuracy or loss in common, so only times are compared."
        return
    if rows[baseline].quality is None:
        name = formatting.quality_name(quality)
        yield f"{rows[baseline].title} has no finite {name}, so no contender is compared with it."
    for row in rows.values():
        difference = row.quality_difference
        if quality.is_share and difference is not None and difference.value < -ALLOWED_LOSS:
            lost = (
                f"{row.title} lost {-100 * difference.value:.1f} points of {formatting.quality_name(quality)}"
            )
            is_faster = row.speedup_total.value > 1
            cost = "the speedup cost accuracy" if is_faster else "and it was not faster"
            yield f"{lost}, more than {100 * ALLOWED_LOSS:g}: {cost}."


def describe_method(rows: Rows) -> dict[str, str]:
    left_out = "; ".join(dict.fromkeys(f"without {row.warm_up}" for row in rows.values()))
    return {
        "Order": "Every contender runs once per round, one after another; the order rotates.",
        "Batch": describe_batch(rows),
        "Total time": "From the call to its result: processes, imports, the cluster, the training, the end.",
        "Start": "From the call to the beginning of the first step.",
        "Steady rate": f"Samples a second of all workers together, {left_out}.",
        "Speedup": "Baseline divided by contender, of total times and of steady rates; efficiency is "
        "speedup divided by workers.",
    }


Runs = Mapping[str, Sequence[Measured]]  # by name, in the order of the rounds; each is in every round


def compare(runs: Runs, *, baseline: str, subject: str, task: str, machine: Machine) -> Benchmark:
    """Compare every contender with the baseline; `subject` is the one whose speedup is reported."""
    assert baseline in runs, "there is a baseline"
    assert subject in runs, "there is a subject"
    assert len({len(group) for group in runs.values()}) == 1, "every contender is in every round"
    quality = best_named([{**run.metrics} for group in runs.values() for run in group])
    names = [baseline, *(name for name in runs if name != baseline)]
    rows = {name: _row(runs[name], runs[baseline], quality) for name in names}
    batches = {row.global_batch for row in rows.values()}
    base = rows[baseline]
    row = rows[subject]
    started = sorted(
        (r.started_unix_s, f"{name}-{n + 1}") for name, rs in runs.items() for n, r in enumerate(rs)
    )
    return Benchmark(
        paceline=__version__,
        task=task,
        baseline=baseline,
        subject=subject,
        num_workers=row.workers,
        speedup=row.speedup_total.value,
        efficiency=row.efficiency_total.value,
        speedup_steady=None if row.speedup_steady is None else row.speedup_steady.value,
        efficiency_steady=None if row.efficiency_steady is None else row.efficiency_steady.value,
        accuracy_lost=_lost(base, row, quality),
        repeats=len(runs[baseline]),
        global_batch=batches.pop() if len(batches) == 1 else None,
        quality=quality,
        rows=rows,
        says=tuple(summarize(rows, baseline, subject, quality)),
        warnings=tuple(find_warnings(rows, baseline, quality, machine)),
        how=describe_method(rows),
        machine=machine,
        order=tuple(name for _, name in started),
    )


def _row(runs: Sequence[Measured], base: Sequence[Measured], quality: Quality | None) -> Row:
    totals = [run.total_s for run in runs]
    first = runs[0]
    total_s = statistics.median(totals)
    typical = min(runs, key=lambda run: abs(run.total_s - total_s))
    steady = [run.steady_samples_per_s for run in runs]
    first_steps_s = [run.first_step_s for run in runs]
    total = _quotient([run.total_s for run in base], totals, is_base=runs is base)
    assert total is not None, "every run took its time"
    # Seconds for a sample: the quotient of times is that of rates, upside down.
    rate = _quotient(_inverse(base), _inverse(runs), is_base=runs is base)
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
        first_step_s=_median(first_steps_s),
        first_step_s_all=tuple(first_steps_s),
        steady_samples_per_s=_median(steady),
        steady_samples_per_s_all=tuple(steady),
        warm_up=first.warm_up,
        speedup_total=total,
        efficiency_total=_over(total, first.workers),
        speedup_steady=rate,
        efficiency_steady=None if rate is None else _over(rate, first.workers),
        metrics={name: _mean([run.metrics.get(name) for run in runs]) for name in first.metrics},
        quality=_quality(runs, quality),
        quality_difference=None if runs is base else _difference(runs, base, quality),
        history=typical.history,
        cluster=typical.cluster,
        facts=typical.facts,
    )


def _inverse(runs: Sequence[Measured]) -> list[float] | None:
    rates = [run.steady_samples_per_s for run in runs]
    return [1 / rate for rate in rates if rate] if all(rates) else None


def _quotient(base: list[float] | None, values: list[float] | None, *, is_base: bool) -> Estimate | None:
    if base is None or values is None:
        return None
    value = statistics.median(base) / statistics.median(values)
    return _estimate(value, None if is_base else quotient_interval(base, values))


def _over(estimate: Estimate, workers: int) -> Estimate:
    low, high = (None if end is None else end / workers for end in (estimate.low, estimate.high))
    return Estimate(value=estimate.value / workers, low=low, high=high)


def _quality(runs: Sequence[Measured], quality: Quality | None) -> Estimate | None:
    values = _values(runs, quality)
    return None if values is None else _estimate(statistics.fmean(values), mean_interval(values))


def _difference(
    runs: Sequence[Measured], base: Sequence[Measured], quality: Quality | None
) -> Estimate | None:
    ours = _values(runs, quality)
    theirs = _values(base, quality)
    if ours is None or theirs is None:
        return None
    value = statistics.fmean(ours) - statistics.fmean(theirs)
    return _estimate(value, difference_interval(ours, theirs))


def _values(runs: Sequence[Measured], quality: Quality | None) -> list[float] | None:
    """None: not requested, or one of them is not a number."""
    if quality is None:
        return None
    values = [run.metrics.get(quality.name) for run in runs]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known if len(known) == len(values) else None


def _lost(base: Row, row: Row, quality: Quality | None) -> float | None:
    if quality is None or not quality.is_share or base.quality is None or row.quality is None:
        return None
    return base.quality.value - row.quality.value


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
