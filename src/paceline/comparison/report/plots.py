"""How do figures become picture files? By matplotlib, without a screen; it comes with paceline[report]."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.comparison.report.figures import BarFigure, Figure, Line, LineFigure
from paceline.core.html_page import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLAIN = "#333333"


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw_all(figures: list[Figure], folder: Path) -> bool:
    """`name.png` and `name.svg` for each; False, and nothing, where matplotlib is not installed."""
    if not can_draw():
        return False
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    folder.mkdir(parents=True, exist_ok=True)
    # The same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "paceline", "svg.fonttype": "none"}):
        for figure in figures:
            picture = Picture(figsize=(7.2, 4.2), layout="constrained")
            FigureCanvasAgg(picture)
            axes = picture.add_subplot()
            axes.set_title(figure.title)
            if isinstance(figure, LineFigure):
                _draw_lines(axes, figure)
            else:
                _draw_bars(axes, figure)
            picture.savefig(folder / f"{figure.name}.png", dpi=120)
            picture.savefig(folder / f"{figure.name}.svg", metadata={"Date": None})
    return True


def _colour(number: int) -> str:
    return _PLAIN if number < 0 else PALETTE[number % len(PALETTE)]


def _draw_lines(axes: "Axes", figure: LineFigure) -> None:
    for line in figure.lines:
        _draw_line(axes, line)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    if figure.has_log_y:
        axes.set_yscale("log")
    if figure.from_zero:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_line(axes: "Axes", line: Line) -> None:
    xs = [x for x, _ in line.points]
    ys = [float("nan") if y is None else y for _, y in line.points]
    style, mark, colour = "--" if line.is_dashed else "-", "o" if line.has_marks else "", _colour(line.colour)
    axes.plot(xs, ys, style, marker=mark, markersize=4, color=colour, label=line.label, linewidth=1.6)
    furthest = 1.25 * max((y for _, y in line.points if y is not None), default=1.0)
    for x, error in zip(xs, line.errors, strict=False):
        if error is not None:
            axes.vlines(x, error[0], max(error[0], min(error[1], furthest)), color=colour, linewidth=1.2)


def _draw_bars(axes: "Axes", figure: BarFigure) -> None:
    labels = [bar.label for bar in figure.bars]
    begins = [0.0] * len(labels)
    for number, (name, colour, _) in enumerate(figure.bars[0].parts):
        parts = [bar.parts[number] for bar in figure.bars]
        is_stacked = len(figure.bars[0].parts) > 1
        shades = _colour(colour) if is_stacked else [_colour(part[1]) for part in parts]
        lengths = [part[2] for part in parts]
        axes.barh(labels, lengths, left=begins, color=shades, label=name if is_stacked else "", height=0.66)
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    # An interval that is far longer than the bars is cut off: it would hide them.
    furthest = 1.25 * max([*begins, 0.0 if figure.mark is None else figure.mark[0]])
    for row, bar in enumerate(figure.bars):
        end = begins[row]
        if bar.error is not None:
            end = max(end, min(bar.error[1], furthest))
            axes.hlines(row, max(0.0, bar.error[0]), end, color=_PLAIN, linewidth=1.4)
        axes.annotate(bar.note, (end, row), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, 1.2 * furthest)
    if figure.mark is not None:
        axes.axvline(figure.mark[0], color=_PLAIN, linestyle="--", linewidth=1, label=figure.mark[1])
    if figure.is_share:
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %" if share <= 1.001 else "")
    axes.invert_yaxis()
    axes.set_xlabel(figure.x if figure.mark is None else f"{figure.x} (dashed: {figure.mark[1]})")
    if len(figure.bars[0].parts) > 1:
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)
