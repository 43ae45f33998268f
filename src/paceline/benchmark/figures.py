"""Which pictures does a benchmark have? Speedups, where the time went, and curves by epoch, as data. Pure."""

from collections.abc import Callable

from paceline.benchmark.compared import Benchmark, Row
from paceline.report import words
from paceline.report.comparison import Estimate
from paceline.report.figures import Bar, BarFigure, Figure, Line, LineFigure


def figures_of(benchmark: Benchmark) -> list[Figure]:
    total = [
        _speedup(benchmark, "total", lambda row: row.speedup_total),
        _efficiency(benchmark, "total", lambda row: row.efficiency_total),
    ]
    steady = [
        _speedup(benchmark, "steady", lambda row: row.speedup_steady),
        _efficiency(benchmark, "steady", lambda row: row.efficiency_steady),
    ]
    shown = [figure for figure in (*total, *steady) if figure.bars]
    return [*shown, _time(benchmark), *_curves(benchmark)]


def colours(benchmark: Benchmark) -> dict[str, int]:
    """Each contender keeps its colour in every figure."""
    return {name: number for number, name in enumerate(benchmark.rows)}


_OF = {"total": "total time", "steady": "steady rate"}


def _speedup(benchmark: Benchmark, kind: str, of: Callable[[Row], Estimate | None]) -> BarFigure:
    most = max(row.workers for row in benchmark.rows.values())
    return BarFigure(
        name=f"speedup-{kind}",
        title=f"Speedup of the {_OF[kind]}",
        x=f"times as fast as {benchmark.rows[benchmark.baseline].title}",
        says=f"How many times as fast as the baseline each was, by {_OF[kind]}; {most} would be ideal.",
        bars=_bars(benchmark, of, words.times),
        mark=(float(most), f"ideal: {most}"),
    )


def _efficiency(benchmark: Benchmark, kind: str, of: Callable[[Row], Estimate | None]) -> BarFigure:
    return BarFigure(
        name=f"efficiency-{kind}",
        title=f"Efficiency of the {_OF[kind]}",
        x="speedup over workers",
        says=f"Speedup of the {_OF[kind]} divided by the number of workers; 100 % would be ideal.",
        bars=_bars(benchmark, of, words.percent),
        mark=(1.0, "ideal"),
        is_share=True,
    )


def _bars(
    benchmark: Benchmark, of: Callable[[Row], Estimate | None], shown: Callable[[float], str]
) -> tuple[Bar, ...]:
    numbers, found = colours(benchmark), []
    for name, row in benchmark.rows.items():
        if (estimate := of(row)) is not None:
            parts, note = ((row.title, numbers[name], estimate.value),), shown(estimate.value)
            found.append(Bar(label=row.title, parts=parts, note=note, error=_error(estimate)))
    return tuple(found)


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
