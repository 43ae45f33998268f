"""How is a comparison shown in a terminal? A line for each contender."""

from paceline.report import words
from paceline.report.comparison import Cell, Comparison


def table(comparison: Comparison) -> list[str]:
    names = words.names(comparison)
    width = max(14, *(len(name) + 2 for name in names.values()))
    quality = "quality" if comparison.quality is None else words.quality_name(comparison.quality)
    head = f"{'mode':<{width}}{'seconds':>9}{'speedup':>9}  {'95 %':<15}{'efficiency':>10}"
    head += f"{quality[:14]:>15}{'difference':>12}{'to target':>11}{'MB sent':>10}{'stale':>7}"
    lines = [head, "-" * len(head)]
    return lines + [_line(names[label], width, cell, comparison) for label, cell in comparison.cells.items()]


def _line(name: str, width: int, cell: Cell, comparison: Comparison) -> str:
    mark = "*" if cell.label == comparison.verdict.use else " "
    value = None if cell.quality is None else cell.quality.value
    stale = "-" if cell.staleness is None else f"{cell.staleness.mean:.2f}"
    reached = "-" if cell.target_s is None else f"{cell.target_s:.2f}s"
    return (
        f"{mark + name:<{width}}{cell.seconds:>9.2f}{cell.speedup.value:>8.2f}x"
        f"  {words.between(cell.speedup):<15}{cell.efficiency.value:>10.0%}"
        f"{words.quality(value, comparison.quality):>15}"
        f"{words.quality_difference(cell.quality_difference, comparison.quality):>12}"
        f"{reached:>11}{cell.bytes_out / 1e6:>10.2f}{stale:>7}"
    )
