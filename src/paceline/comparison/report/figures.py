"""Figures as data: lines and bars, drawn by svg.py in pages and files. Pure."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.comparison.report import formatting
from paceline.comparison.schema import Cell, Comparison, Estimate
from paceline.comparison.statistics import Amdahl
from paceline.events.schema import PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through (x, y); broken where y is None."""

    label: str
    colour: int  # a number of the palette; -1: of no mode, in the text's own colour
    points: tuple[tuple[float, float | None], ...]
    is_dashed: bool = False
    has_marks: bool = False
    errors: tuple[tuple[float, float] | None, ...] = ()  # low and high of each point


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFigure:
    name: str  # of its file
    title: str
    x: str
    y: str
    says: str  # text alternative
    lines: tuple[Line, ...]
    has_log_y: bool = False
    from_zero: bool = False


Colour = int | str  # a number of the palette, or the name of a phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, of one or several parts: (name, colour, length)."""

    label: str
    parts: tuple[tuple[str, Colour, float], ...]
    note: str
    error: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarFigure:
    """Horizontal bars, one under another."""

    name: str
    title: str
    x: str
    says: str
    bars: tuple[Bar, ...]
    mark: tuple[float, str] | None = None  # a line across, such as 1, with what it means
    is_share: bool = False  # lengths are shares: shown in per cent


Figure = LineFigure | BarFigure


def loss_figure(
    name: str,
    title: str,
    x: str,
    curves: Sequence[tuple[str, tuple[tuple[float, float | None], ...]]],
    caption: str,
) -> LineFigure | None:
    lines = tuple(
        Line(label=label, colour=number, points=points)
        for number, (label, points) in enumerate(curves)
        if len(points) > 1
    )
    if not lines:
        return None
    values = [y for line in lines for _, y in line.points if y is not None]
    is_wide = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
    return LineFigure(
        name=name, title=title, x=x, y="training loss", says=caption, lines=lines, has_log_y=is_wide
    )


def evaluation_figures(
    evaluated: Sequence[tuple[str, int, Sequence[tuple[float, Mapping[str, float | None]]]]], how: str
) -> list[LineFigure]:
    """Of (label, colour, what was seen when)."""
    metrics = dict.fromkeys(name for _, _, seen in evaluated for _, values in seen for name in values)
    return [
        LineFigure(
            name=f"evaluated-{_slug(metric)}",
            title=f"{metric.replace('_', ' ').capitalize()} over time",
            x="seconds",
            y=metric.replace("_", " "),
            says=f"{metric.replace('_', ' ').capitalize()}, {how}.",
            lines=tuple(
                Line(
                    label=label,
                    colour=colour,
                    points=tuple((seconds, _finite(values.get(metric))) for seconds, values in seen),
                    has_marks=True,
                )
                for label, colour, seen in evaluated
            ),
        )
        for metric in metrics
    ]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def phase_figure(phases: dict[str, dict[str, float]], names: dict[str, str]) -> BarFigure | None:
    """Shares of the workers' time, by contender; None: nothing was recorded."""
    shown = [p for p in PHASES if any(shares.get(p, 0.0) >= 0.005 for shares in phases.values())]
    if not shown:
        return None
    bars = tuple(
        Bar(
            label=names[label],
            parts=tuple((p, p, shares.get(p, 0.0)) for p in shown),
            note=f"{formatting.percent(shares.get('wait', 0.0))} waiting",
        )
        for label, shares in phases.items()
    )
    waits = "; ".join(
        f"{names[label]} waits {formatting.percent(m.get('wait', 0.0))}" for label, m in phases.items()
    )
    return BarFigure(
        name="phases",
        title="Where the time goes",
        x="share of the workers' time",
        says=f"Shares of the workers' time: {waits}. Delay is the configured pace and straggler delay.",
        bars=bars,
        is_share=True,
    )


def staleness_figure(
    histograms: dict[str, dict[str, int]], names: dict[str, str], numbers: dict[str, int]
) -> LineFigure | None:
    if not histograms:
        return None
    lines = []
    for label, histogram in histograms.items():
        total = sum(histogram.values())
        most = max(map(int, histogram))
        points = tuple((float(v), histogram.get(str(v), 0) / total) for v in range(most + 1))
        lines.append(Line(label=names[label], colour=numbers[label], points=points, has_marks=True))
    return LineFigure(
        name="staleness",
        title="Staleness",
        x="updates between reading and applying",
        y="share of gradients",
        says="Distribution of gradient staleness: updates applied between reading the parameters and "
        "applying the gradient.",
        lines=tuple(lines),
        from_zero=True,
    )


def figures_of(comparison: Comparison) -> list[Figure]:
    figures: list[Figure | None] = [
        _loss_over_time(comparison),
        _loss_over_samples(comparison),
        *_evaluations(comparison),
        _speedup(comparison),
        _efficiency(comparison),
        phase_figure(
            {label: cell.phases for label, cell in comparison.cells.items()}, formatting.names(comparison)
        ),
        staleness_figure(
            {label: c.staleness.histogram for label, c in comparison.cells.items() if c.staleness},
            formatting.names(comparison),
            colours(comparison),
        ),
    ]
    return [figure for figure in figures if figure is not None]


def colours(comparison: Comparison) -> dict[str, int]:
    """Each contender keeps its colour in every figure."""
    return {label: number for number, label in enumerate(comparison.cells)}


def _loss_over_time(comparison: Comparison) -> LineFigure | None:
    return loss_figure(
        "loss-over-time",
        "Loss over time",
        "seconds",
        [
            (formatting.names(comparison)[label], tuple(zip(c.curve.seconds, c.curve.loss, strict=True)))
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
            (formatting.names(comparison)[label], tuple(zip(c.curve.samples, c.curve.loss, strict=True)))
            for label, c in comparison.cells.items()
        ],
        "Training loss of every mode against samples. Overlapping lines mean equal learning per sample.",
    )


def _evaluations(comparison: Comparison) -> list[LineFigure]:
    """One for each metric that was evaluated during training."""
    names = formatting.names(comparison)
    numbers = colours(comparison)
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
    counts = formatting.worker_counts(comparison.cells, comparison.baseline)
    if len(counts) > 1:
        return _speedup_lines(comparison, counts)
    return BarFigure(
        name="speedup",
        title="Speedup",
        x="times as fast as one worker alone",
        says="How many times as fast as one worker alone each mode did the same work, with 95 % intervals;"
        f" {counts[0]} would be ideal.",
        bars=_bars(comparison, lambda cell: cell.speedup, formatting.times),
        mark=(float(counts[0]), f"ideal: {counts[0]}"),
    )


def _speedup_lines(comparison: Comparison, counts: Sequence[int]) -> LineFigure:
    numbers = colours(comparison)
    ends = (1.0, float(counts[-1]))
    lines = [Line(label="ideal", colour=-1, points=tuple((n, n) for n in ends), is_dashed=True)]
    for mode in dict.fromkeys(
        c.mode for label, c in comparison.cells.items() if label != comparison.baseline
    ):
        cells = sorted((c for c in comparison.cells.values() if c.mode == mode), key=lambda c: c.workers)
        colour = numbers[cells[0].label]
        lines.append(
            Line(
                label=mode,
                colour=colour,
                points=tuple((float(c.workers), c.speedup.value) for c in cells),
                has_marks=True,
                errors=tuple(_error(c.speedup.low, c.speedup.high) for c in cells),
            )
        )
        if mode in comparison.scaling:
            fit = Amdahl(serial=comparison.scaling[mode].serial)
            steps = [1 + (counts[-1] - 1) * i / 30 for i in range(31)]
            points = tuple((n, fit.speedup(n)) for n in steps)
            share = formatting.percent(fit.serial, 1)
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
        bars=_bars(comparison, lambda cell: cell.efficiency, formatting.percent),
        mark=(1.0, "ideal"),
        is_share=True,
    )


def _bars(
    comparison: Comparison, shown: Callable[[Cell], Estimate], in_words: Callable[[float], str]
) -> tuple[Bar, ...]:
    names = formatting.names(comparison)
    numbers = colours(comparison)
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
