"""How often was `up` said, and how often was it true? Four counts, what follows from them, a picture.

The picture is a PNG where matplotlib is installed (`pip install 'paceline[report]'`),
else an SVG with the same numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BytesIO

from torch import Tensor

LABELS = ("down", "up")
_SHADES = (0.08, 0.75)  # of the smallest and of the largest possible count


@dataclass(frozen=True, slots=True)
class Confusion:
    """`up` is positive: tp were said to rise, and rose."""

    tn: int
    fp: int
    fn: int
    tp: int

    @classmethod
    def of(cls, said: Tensor, true: Tensor) -> "Confusion":
        counts = (~said & ~true, said & ~true, ~said & true, said & true)
        return cls(*(int(count.sum()) for count in counts))

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> "Confusion":
        return cls(*(int(metrics[name]) for name in ("tn", "fp", "fn", "tp")))

    @property
    def matrix(self) -> list[list[int]]:
        """A row for what came true, a column for what was said; down first."""
        return [[self.tn, self.fp], [self.fn, self.tp]]

    def metrics(self) -> dict[str, float]:
        """`always_up`: the accuracy of who says `up` every day. A model that is no better knows nothing."""
        total = self.tn + self.fp + self.fn + self.tp
        return {
            "test_accuracy": _share(self.tn + self.tp, total),
            "always_up": _share(self.fn + self.tp, total),
            "f1": _share(2 * self.tp, 2 * self.tp + self.fp + self.fn),
            "precision": _share(self.tp, self.tp + self.fp),
            "recall": _share(self.tp, self.tp + self.fn),
            **{name: float(count) for name, count in asdict(self).items()},
        }


def files_of(confusion: Confusion, *, threshold: float) -> dict[str, bytes]:
    """By name: the numbers, and the picture in the best form that can be drawn here."""
    facts = {
        "labels": list(LABELS),
        "rows": "what came true",
        "columns": "what was said",
        "matrix": confusion.matrix,
        "threshold": threshold,
        **confusion.metrics(),
    }
    files = {"confusion_matrix.json": (json.dumps(facts, indent=2) + "\n").encode()}
    try:
        files["confusion_matrix.png"] = as_png(confusion)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        files["confusion_matrix.svg"] = as_svg(confusion).encode()
    return files


@dataclass(frozen=True, slots=True)
class _Cell:
    row: int
    column: int
    count: int
    share: float  # of its row
    shade: float  # how dark


def as_png(confusion: Confusion) -> bytes:
    # Not pyplot: it looks for a display, and keeps what it draws.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shades = [[cell.shade for cell in _cells(confusion) if cell.row == row] for row in (0, 1)]
    axes.imshow(shades, cmap="Blues", vmin=0, vmax=1)
    for cell in _cells(confusion):
        ink = "white" if cell.shade > 0.5 else "black"
        text = f"{cell.count}\n{cell.share:.0%}"
        axes.text(cell.column, cell.row, text, ha="center", va="center", color=ink, fontsize=14)
    axes.set_xticks((0, 1), LABELS)
    axes.set_yticks((0, 1), LABELS)
    axes.set_xlabel("said")
    axes.set_ylabel("came true")
    axes.set_title(_title(confusion), fontsize=10)
    drawn = BytesIO()
    canvas.print_png(drawn)
    return drawn.getvalue()


def as_svg(confusion: Confusion) -> str:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="360" height="340" font-family="sans-serif"'
        ' text-anchor="middle">',
        '<rect width="360" height="340" fill="white"/>',
        f'<text x="190" y="24" font-size="13">{_title(confusion)}</text>',
        '<text x="190" y="326" font-size="13">said</text>',
        '<text x="20" y="166" font-size="13" transform="rotate(-90 20 166)">came true</text>',
    ]
    for place, label in enumerate(LABELS):
        parts.append(f'<text x="{130 + 120 * place}" y="300" font-size="13">{label}</text>')
        parts.append(f'<text x="48" y="{111 + 120 * place}" font-size="13">{label}</text>')
    for cell in _cells(confusion):
        x, y = 70 + 120 * cell.column, 40 + 120 * cell.row
        ink = "white" if cell.shade > 0.5 else "black"
        parts.append(
            f'<rect x="{x}" y="{y}" width="118" height="118" fill="#08519c" fill-opacity="{cell.shade:.3f}"/>'
        )
        parts.append(f'<text x="{x + 59}" y="{y + 58}" font-size="22" fill="{ink}">{cell.count}</text>')
        parts.append(f'<text x="{x + 59}" y="{y + 80}" font-size="13" fill="{ink}">{cell.share:.0%}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cells(confusion: Confusion) -> list[_Cell]:
    low, high = _SHADES
    cells = []
    for row, counts in enumerate(confusion.matrix):
        for column, count in enumerate(counts):
            share = _share(count, sum(counts))
            cells.append(_Cell(row, column, count, share, low + (high - low) * share))
    return cells


def _title(confusion: Confusion) -> str:
    found = confusion.metrics()
    return f"accuracy {found['test_accuracy']:.1%}; always up: {found['always_up']:.1%}"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
