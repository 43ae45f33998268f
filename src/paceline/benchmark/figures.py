"""Which pictures does a benchmark have? Speedups, where the time went, and curves by epoch, as data. Pure."""

from collections.abc import Callable

from paceline.benchmark.compared import Benchmark, Row
from paceline.report import words
from paceline.report.comparison import Estimate
from paceline.report.figures import Bar, BarFigure, Figure, Line, LineFigure


def figures_of(benchmark: Benchmark) -> list[Figure]:
    found: list[Figure] = [_speedup(benchmark, "total", lambda row: row.speedup_total)]
    if any(row.speedup_steady is not None for row in benchmark.rows.values()):
        found.append(_speedup(benchmark, "steady", lambda row: row.speedup_steady))
    return [*found, _efficiency(benchmark), _time(benchmark), *_curves(benchmark)]


def colours(benchmark: Benchmark) -> dict[str, int]:
    """Each contender keeps its colour in every figure."""
    return {name: number for number, name in enumerate(benchmark.rows)}


_OF = {"total": "total time", "steady": "steady rate"}


def _speedup(benchmark: Benchmark, kind: str, of: Callable[[Row], Estimate | None]) -> BarFigure:
    numbers, most = colours(benchmark), max(row.workers for row in benchmark.rows.values())
    bars = []
    for name, row in benchmark.rows.items():
        if (estimate := of(row)) is not None:
            parts = ((row.title, numbers[name], estimate.value),)
            error = _error(estimate)
            bars.append(Bar(label=row.title, parts=parts, note=words.times(estimate.value), error=error))
    return BarFigure(
        name=f"speedup-{kind}",
        title=f"Speedup of the {_OF[kind]}",
        x=f"times as fast as {benchmark.rows[benchmark.baseline].title}",
        says=f"How many times as fast as the baseline each was, by {_OF[kind]}; {most} would be ideal.",
        bars=tuple(bars),
        mark=(float(most), f"ideal: {most}"),
    )


def _efficiency(benchmark: Benchmark) -> BarFigure:
    numbers, bars = colours(benchmark), []
    for name, row in benchmark.rows.items():
        for kind, estimate in (("total", row.efficiency_total), ("steady", row.efficiency_steady)):
            if estimate is not None and name != benchmark.baseline:
                label, note = f"{row.title}, {kind}", words.percent(estimate.value)
                parts = ((label, numbers[name], estimate.value),)
                bars.append(Bar(label=label, parts=parts, note=note, error=_error(estimate)))
    return BarFigure(
        name="efficiency",
        title="Efficiency",
        x="speedup over workers",
        says="Speedup divided by the number of workers, of the total time and of the steady rate; 100 % would"
        " be ideal.",
        bars=tuple(bars),
        mark=(1.0, "ideal"),
        is_share=True,
    )


def _time(benchmark: Benchmark) -> BarFigure:
    bars = []
    for row in benchmark.rows.values():
        begun_s = min(row.total_s, row.first_step_s or 0.0)
        parts = (("before the first step", 7, begun_s), ("from then on", 0, row.total_s - begun_s))
        bars.append(Bar(label=row.title, parts=parts, note=words.seconds(row.total_s)))
    return BarFigure(
        name="time",
        title="Where the time went",
        x="seconds from the call to its result",
        says="Total time of each, and which part of it had passed when the first step began.",
        bars=tuple(bars),
    )


def _curves(benchmark: Benchmark) -> list[LineFigure]:
    """One for each metric that was seen on the way."""
    numbers = colours(benchmark)
    seen = {name: row.history for name, row in benchmark.rows.items() if row.history}
    metrics = dict.fromkeys(metric for rows in seen.values() for row in rows for metric in row.metrics)
    return [
        LineFigure(
            name=f"curve-{metric.replace('_', '-')}",
            title=f"{metric.replace('_', ' ').capitalize()} by epoch",
            x="epochs",
            y=metric.replace("_", " "),
            says=f"{metric.replace('_', ' ').capitalize()} of one repeat of each. Where lines lie together,"
            " they learn alike.",
            lines=tuple(
                Line(
                    label=benchmark.rows[name].title,
                    colour=numbers[name],
                    points=tuple((row.epoch, row.metrics.get(metric)) for row in rows),
                    has_marks=len(rows) <= 30,
                )
                for name, rows in seen.items()
                if any(metric in row.metrics for row in rows)
            ),
        )
        for metric in metrics
    ]


def _error(estimate: Estimate) -> tuple[float, float] | None:
    return None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
