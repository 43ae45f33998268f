"""Which pictures does a comparison have? Losses, speedup, efficiency, phases and staleness, as data. Pure."""

from collections.abc import Callable, Sequence

from paceline.report import words
from paceline.report.comparison import Cell, Comparison, Estimate
from paceline.report.figures import (
    Bar,
    BarFigure,
    Figure,
    Line,
    LineFigure,
    evaluation_figures,
    loss_figure,
    phase_figure,
    staleness_figure,
)
from paceline.report.statistics import Amdahl


def figures_of(comparison: Comparison) -> list[Figure]:
    found: list[Figure | None] = [
        _loss_over_time(comparison),
        _loss_over_samples(comparison),
        *_evaluations(comparison),
        _speedup(comparison),
        _efficiency(comparison),
        phase_figure(
            {label: cell.phases for label, cell in comparison.cells.items()}, words.names(comparison)
        ),
        staleness_figure(
            {label: c.staleness.histogram for label, c in comparison.cells.items() if c.staleness},
            words.names(comparison),
            colours(comparison),
        ),
    ]
    return [figure for figure in found if figure is not None]


def colours(comparison: Comparison) -> dict[str, int]:
    """Each contender keeps its colour in every figure."""
    return {label: number for number, label in enumerate(comparison.cells)}


def _loss_over_time(comparison: Comparison) -> LineFigure | None:
    return loss_figure(
        "loss-over-time",
        "Loss over time",
        "seconds",
        [
            (words.names(comparison)[label], tuple(zip(c.curve.seconds, c.curve.loss, strict=True)))
            for label, c in comparison.cells.items()
        ],
        "Training loss of every mode against seconds since its first step. Lower and further left is better.",
    )


def _loss_over_samples(comparison: Comparison) -> LineFigure | None:
    return loss_figure(
        "loss-over-samples",
        "Loss over samples",
        "samples",
        [
            (words.names(comparison)[label], tuple(zip(c.curve.samples, c.curve.loss, strict=True)))
            for label, c in comparison.cells.items()
        ],
        "Training loss of every mode against samples. Where lines lie together, modes learn alike.",
    )


def _evaluations(comparison: Comparison) -> list[LineFigure]:
    """One for each metric that was looked at on the way."""
    names, numbers = words.names(comparison), colours(comparison)
    evaluated = {
        label: [(e.seconds, e.metrics) for e in cell.evaluations]
        for label, cell in comparison.cells.items()
        if cell.evaluations
    }
    return evaluation_figures(
        [(names[label], numbers[label], seen) for label, seen in evaluated.items()],
        "as it was evaluated during one repeat of each mode that can be",
    )


def _speedup(comparison: Comparison) -> Figure:
    counts = words.worker_counts(comparison.cells, comparison.baseline)
    if len(counts) > 1:
        return _speedup_lines(comparison, counts)
    return BarFigure(
        name="speedup",
        title="Speedup",
        x="times as fast as one worker alone",
        says="How many times as fast as one worker alone each mode did the same work, with 95 % intervals;"
        f" {counts[0]} would be ideal.",
        bars=_bars(comparison, lambda cell: cell.speedup, words.times),
        mark=(float(counts[0]), f"ideal: {counts[0]}"),
    )


def _speedup_lines(comparison: Comparison, counts: Sequence[int]) -> LineFigure:
    numbers = colours(comparison)
    ends = (1.0, float(counts[-1]))
    lines = [Line(label="ideal", colour=-1, points=tuple((n, n) for n in ends), is_dashed=True)]
    for mode in dict.fromkeys(
        c.mode for label, c in comparison.cells.items() if label != comparison.baseline
    ):
        mine = sorted((c for c in comparison.cells.values() if c.mode == mode), key=lambda c: c.workers)
        colour = numbers[mine[0].label]
        lines.append(
            Line(
                label=mode,
                colour=colour,
                points=tuple((float(c.workers), c.speedup.value) for c in mine),
                has_marks=True,
                errors=tuple(_error(c.speedup.low, c.speedup.high) for c in mine),
            )
        )
        if mode in comparison.scaling:
            fit = Amdahl(serial=comparison.scaling[mode].serial)
            steps = [1 + (counts[-1] - 1) * i / 30 for i in range(31)]
            points = tuple((n, fit.speedup(n)) for n in steps)
            share = words.percent(fit.serial, 1)
            lines.append(
                Line(label=f"{mode}: Amdahl, {share} serial", colour=colour, points=points, is_dashed=True)
            )
    return LineFigure(
        name="speedup",
        title="Speedup",
        x="workers",
        y="times as fast as one worker",
        says="Speedup of every mode against its number of workers, with 95 % intervals, the ideal line and"
        " the curve of Amdahl's law that fits best.",
        lines=tuple(lines),
        from_zero=True,
    )


def _efficiency(comparison: Comparison) -> BarFigure:
    return BarFigure(
        name="efficiency",
        title="Efficiency",
        x="speedup over workers",
        says="Speedup divided by the number of workers, with 95 % intervals; 100 % would be ideal.",
        bars=_bars(comparison, lambda cell: cell.efficiency, words.percent),
        mark=(1.0, "ideal"),
        is_share=True,
    )


def _bars(
    comparison: Comparison, shown: Callable[[Cell], Estimate], in_words: Callable[[float], str]
) -> tuple[Bar, ...]:
    names, numbers = words.names(comparison), colours(comparison)
    estimates = {label: shown(cell) for label, cell in comparison.cells.items()}
    return tuple(
        Bar(
            label=names[label],
            parts=((names[label], numbers[label], estimate.value),),
            note=in_words(estimate.value),
            error=_error(estimate.low, estimate.high),
        )
        for label, estimate in estimates.items()
    )


def _error(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)
