"""What is shown in a picture? Figures as data: the page draws them one way, picture files another. Pure."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.events.schema import PHASES
from paceline.report import words


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
    says: str  # what it shows, for those who do not see it
    lines: tuple[Line, ...]
    has_log_y: bool = False
    from_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, of one or several parts: (name, colour, length)."""

    label: str
    parts: tuple[tuple[str, int, float], ...]
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
    says: str,
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
        name=name, title=title, x=x, y="training loss", says=says, lines=lines, has_log_y=is_wide
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
    shown = [p for p in PHASES if any(mine.get(p, 0.0) >= 0.005 for mine in phases.values())]
    if not shown:
        return None
    bars = tuple(
        Bar(
            label=names[label],
            parts=tuple((p, PHASES.index(p), mine.get(p, 0.0)) for p in shown),
            note=f"{words.percent(mine.get('wait', 0.0))} waiting",
        )
        for label, mine in phases.items()
    )
    waits = "; ".join(
        f"{names[label]} waits {words.percent(m.get('wait', 0.0))}" for label, m in phases.items()
    )
    return BarFigure(
        name="phases",
        title="Where the time goes",
        x="share of the workers' time",
        says=f"Shares of the workers' time: {waits}. Delay is the pace and the slowness that were asked for.",
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
        title="How stale gradients were",
        x="updates between reading and applying",
        y="share of gradients",
        says="Which share of the gradients was how many updates old when it was applied.",
        lines=tuple(lines),
        from_zero=True,
    )
