"""SVG drawings of figures: inside a page, and as separate files under plots/.

In a page a drawing takes the page's colours, light or dark. A file is complete by itself: it holds
its style, its title and its legend, and the same numbers give the same bytes. Text stays text, and
each figure carries a description of what it shows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.comparison.report import formatting
from paceline.comparison.report.figures import Bar, BarFigure, Colour, Figure, Line, LineFigure
from paceline.core.html import Markup, raw, tag
from paceline.core.html_page import picture_style

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    first: float  # where `low` lies, in the picture's units
    last: float
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high, position = (
            map(math.log10, (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        )
        return self.first + (position - low) / (high - low) * (self.last - self.first)

    def ticks(self, count: int = 5) -> list[float]:
        ticks = _log_ticks(self.low, self.high) if self.is_log else _ticks(self.low, self.high, count)
        return ticks or [self.low, self.high]


def scale_for(
    values: Sequence[float], first: float, last: float, *, from_zero: bool = False, is_log: bool = False
) -> Scale:
    """Scale from the minimum to the maximum of these, with a margin."""
    low = min(values)
    high = max(values)
    if is_log:
        return Scale(low / 1.08, high * 1.08, first, last, is_log=True)
    low = min(0.0, low) if from_zero else low
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return Scale(low if low in (0.0, 1.0) else low - margin, high + margin, first, last)


def tick_text(value: float) -> str:
    if value and (abs(value) >= 10_000 or abs(value) < 0.001):
        return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.0e}"
    return f"{value:.4g}"


def _ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / max(1, count)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in _STEPS if s * unit >= rough * 0.999)
    begin = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(begin, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**k for k in powers for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    return [t for t in ticks if math.log10(t).is_integer()] if len(ticks) > 7 else ticks


WIDTH = 480.0
HEIGHT = 290.0
_LEFT = 54.0
_RIGHT = 14.0
_TOP = 12.0
_BOTTOM = 44.0
_ROW = 30.0
_LABEL = 112.0
_NOTE = 92.0
_TITLE = 26.0  # height of a file's title
_LEGEND_ROW = 18.0
_LEGEND_GAP = 14.0
_SAMPLE = 28.0  # a legend's line and the space behind it
_CHARACTER = 6.8  # width, roughly: text is laid out by the viewer
COLOURS = 8
_FURTHEST = 1.25  # an interval is cut off beyond this multiple of the largest value: it would hide the values


def draw(figure: Figure) -> Markup:
    """The picture with its title, and under it which colour is whose."""
    body, height = _lines(figure) if isinstance(figure, LineFigure) else _bars(figure)
    picture = tag(
        "svg",
        tag("title", figure.title),
        tag("desc", figure.says),
        body,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_labelledby=f"figure-{figure.name}",
        aria_describedby=f"says-{figure.name}",
    )
    caption = tag("figcaption", tag("p", figure.says, id=f"says-{figure.name}"), _legend(figure))
    return tag("figure", tag("h3", figure.title, id=f"figure-{figure.name}"), picture, caption)


def write_plots(figures: Sequence[Figure], folder: Path) -> None:
    """Write `NAME.svg` for each figure."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        (folder / f"{figure.name}.svg").write_text(svg_file(figure), encoding="utf-8")


def svg_file(figure: Figure) -> str:
    """The figure as an SVG document on a white ground: title, drawing, legend."""
    body, drawn_height = _lines(figure) if isinstance(figure, LineFigure) else _bars(figure)
    legend, legend_height = _file_legend(_legend_keys(figure), _TITLE + drawn_height + _LEGEND_ROW)
    height = _TITLE + drawn_height + legend_height
    document = tag(
        "svg",
        tag("title", figure.title),
        tag("desc", figure.says),
        tag("style", raw(picture_style())),
        tag("rect", width=WIDTH, height=height, fill="#fff"),
        tag("text", figure.title, x=WIDTH / 2, y=18.0, class_="middle", font_size=15, font_weight=600),
        tag("g", body, transform=f"translate(0 {_TITLE:g})"),
        legend,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        width=1.5 * WIDTH,
        height=1.5 * height,
        font_family="system-ui, sans-serif",
        font_size=12.5,
        role="img",
    )
    return f"{document}\n"


def _file_legend(keys: Sequence[tuple[str, Colour, str | None]], top: float) -> tuple[list[Markup], float]:
    """Keys from left to right in as many rows as they need, and the height of the rows."""
    items: list[Markup] = []
    left = _LEGEND_GAP
    bottom = top
    for label, colour, dash in keys:
        width = _SAMPLE + len(label) * _CHARACTER
        if left > _LEGEND_GAP and left + width > WIDTH:
            left = _LEGEND_GAP
            bottom += _LEGEND_ROW
        style = f"{colour_class(colour)} thick"
        middle = bottom - 4
        items.append(
            tag("line", x1=left, y1=middle, x2=left + 22, y2=middle, class_=style, stroke_dasharray=dash)
        )
        items.append(tag("text", label, x=left + _SAMPLE, y=bottom))
        left += width + _LEGEND_GAP
    return items, bottom - top + 1.5 * _LEGEND_ROW if keys else 0.0


def colour_class(colour: Colour) -> str:
    if isinstance(colour, str):
        return f"phase_{colour}"
    return "plain" if colour < 0 else f"c{colour % COLOURS}"


def _legend_keys(figure: Figure) -> list[tuple[str, Colour, str | None]]:
    """Of (label, colour, dashes); bars of one part are labelled themselves."""
    if isinstance(figure, LineFigure):
        return [(line.label, line.colour, _dash(line)) for line in figure.lines]
    parts = figure.bars[0].parts
    return [(name, colour, None) for name, colour, _ in parts] if len(parts) > 1 else []


def _legend(figure: Figure) -> Markup | str:
    keys = _legend_keys(figure)
    if not keys:
        return ""
    items = [
        tag(
            "li",
            tag(
                "svg",
                tag(
                    "line",
                    x1=0,
                    y1=5,
                    x2=22,
                    y2=5,
                    class_=f"{colour_class(colour)} thick",
                    stroke_dasharray=dash,
                ),
                viewBox="0 0 22 10",
                aria_hidden="true",
            ),
            label,
        )
        for label, colour, dash in keys
    ]
    return tag("ul", items, class_="legend")


def _lines(figure: LineFigure) -> tuple[list[Markup], float]:
    xs = [x for line in figure.lines for x, _ in line.points]
    ys = [y for line in figure.lines for _, y in line.points if y is not None]
    most = _FURTHEST * max(ys, default=1.0)
    ys += [min(end, most) for line in figure.lines for error in line.errors if error for end in error]
    x = scale_for(xs, _LEFT, WIDTH - _RIGHT, from_zero=figure.name != "speedup")
    y = scale_for(
        ys or [0.0, 1.0],
        HEIGHT - _BOTTOM,
        _TOP,
        from_zero=figure.from_zero,
        is_log=figure.has_log_y,
    )
    body = [*_axes(figure, x, y)]
    for line in figure.lines:
        body += _line(line, x, y)
    return body, HEIGHT


def _axes(figure: LineFigure, x: Scale, y: Scale) -> Iterator[Markup]:
    bottom = HEIGHT - _BOTTOM
    for value in y.ticks():
        yield tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y.at(value), y2=y.at(value), class_="grid")
        yield tag("text", tick_text(value), x=_LEFT - 6, y=y.at(value) + 4, class_="end")
    for value in x.ticks():
        yield tag("line", x1=x.at(value), x2=x.at(value), y1=bottom, y2=bottom + 4, class_="axis")
        yield tag("text", tick_text(value), x=x.at(value), y=bottom + 18, class_="middle")
    yield tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis")
    yield tag("text", figure.x, x=(_LEFT + WIDTH - _RIGHT) / 2, y=HEIGHT - 6, class_="middle")
    middle = (_TOP + bottom) / 2
    scale = f"{figure.y} (log)" if figure.has_log_y else figure.y
    yield tag("text", scale, x=12, y=middle, class_="middle", transform=f"rotate(-90 12 {middle:g})")


def _line(line: Line, x: Scale, y: Scale) -> Iterator[Markup]:
    colour = colour_class(line.colour)
    for piece in _pieces(line.points):
        points = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in piece)
        yield tag("polyline", points=points, class_=colour, stroke_dasharray=_dash(line))
        if line.has_marks:
            for a, b in piece:
                yield tag("circle", cx=x.at(a), cy=y.at(b), r=3.2, class_=f"{colour} mark")
    for (a, _), error in zip(line.points, line.errors, strict=False):
        if error is not None:
            low, high = (y.at(min(end, y.high)) for end in error)
            yield tag("line", x1=x.at(a), x2=x.at(a), y1=low, y2=high, class_=colour)


def _pieces(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Between the points that are not known."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _dash(line: Line) -> str | None:
    if line.is_dashed:
        return "5 4"
    return "9 3" if line.colour >= COLOURS else None  # colours repeat


def _bars(figure: BarFigure) -> tuple[list[Markup], float]:
    height = _TOP + _ROW * len(figure.bars) + _BOTTOM
    ends = [sum(part[2] for part in bar.parts) for bar in figure.bars]
    ends += [figure.mark[0]] if figure.mark is not None else []
    ends += [min(bar.error[1], _FURTHEST * max(ends)) for bar in figure.bars if bar.error is not None]
    x = Scale(0.0, max([*ends, 1.0 if figure.is_share else 1e-9]), _LABEL, WIDTH - _NOTE)
    bottom = height - _BOTTOM
    body = [tag("line", x1=_LABEL, x2=_LABEL, y1=_TOP, y2=bottom, class_="axis")]
    for value in x.ticks(4):
        text = formatting.percent(value) if figure.is_share else tick_text(value)
        body.append(tag("line", x1=x.at(value), x2=x.at(value), y1=_TOP, y2=bottom, class_="grid"))
        body.append(tag("text", text, x=x.at(value), y=bottom + 16, class_="middle"))
    for number, bar in enumerate(figure.bars):
        body += _bar(bar, x, _TOP + _ROW * number)
    if figure.mark is not None:
        position = x.at(figure.mark[0])
        body.append(
            tag("line", x1=position, x2=position, y1=_TOP, y2=bottom, class_="plain", stroke_dasharray="5 4")
        )
    under = figure.x if figure.mark is None else f"{figure.x} (dashed: {figure.mark[1]})"
    body.append(tag("text", under, x=(_LABEL + WIDTH - _NOTE) / 2, y=height - 6, class_="middle"))
    return body, height


def _bar(bar: Bar, x: Scale, top: float) -> Iterator[Markup]:
    middle = top + _ROW / 2
    begin = 0.0
    yield tag("text", _short(bar.label), x=_LABEL - 6, y=middle + 4, class_="end")
    for name, colour, length in bar.parts:
        left = x.at(begin)
        right = x.at(begin + length)
        title = tag("title", f"{bar.label}, {name}") if len(bar.parts) > 1 else ""
        box = tag("rect", x=left, y=top + 5, width=max(0.0, right - left), height=_ROW - 10)
        yield tag("g", title, box, class_=f"{colour_class(colour)} fill")
        begin += length
    if bar.error is not None:
        low, high = (x.at(min(max(0.0, value), x.high)) for value in bar.error)
        yield tag("line", x1=low, x2=high, y1=middle, y2=middle, class_="plain")
        for at in (low, high):
            yield tag("line", x1=at, x2=at, y1=middle - 4, y2=middle + 4, class_="plain")
    yield tag("text", bar.note, x=WIDTH - _NOTE + 8, y=middle + 4)


def _short(label: str) -> str:
    short = label.replace(" with ", " ").replace(" workers", "")
    return short if len(short) <= 17 else short[:16] + "…"
