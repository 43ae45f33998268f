"""Numbers of a comparison as text: one way for the page, the table and the sentences."""

from paceline.comparison.schema import Cell, Comparison, Estimate, Quality, Target

WIDEST = 10.0  # an interval whose ends differ by a larger factor is not informative, and is not shown


def times(value: float) -> str:
    return f"{value:.2f}×"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def points(difference: float) -> str:
    """Difference in percentage points: `+0.3`, `−1.2`."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def megabytes(count: int) -> str:
    if count == 0:
        return "–"
    return f"{count / 1e6:.2f} MB" if count < 1e8 else f"{count / 1e6:.0f} MB"


def between(estimate: Estimate, digits: int = 2, factor: float = 1.0) -> str:
    """`2.81 to 2.95`, or nothing where there is no interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    if estimate.low > 0 and estimate.high > WIDEST * estimate.low:
        return "inconclusive"
    return f"{estimate.low * factor:.{digits}f} to {estimate.high * factor:.{digits}f}".replace("-", "−")


def quality(value: float | None, judged_by: Quality | None) -> str:
    if value is None or judged_by is None:
        return "–"
    return percent(value, 1) if judged_by.is_share else f"{value:.4g}"


def quality_difference(estimate: Estimate | None, judged_by: Quality | None) -> str:
    if estimate is None or judged_by is None:
        return "–"
    return points(estimate.value) if judged_by.is_share else f"{estimate.value:+.3g}".replace("-", "−")


def quality_name(judged_by: Quality) -> str:
    return judged_by.name.replace("_", " ")


def target(goal: Target) -> str:
    what = goal.what.replace("_", " ")
    article = "an" if what.startswith(tuple("aeiou")) else "a"
    return f"{article} {what} of {percent(goal.value, 1) if goal.is_share else f'{goal.value:.3g}'}"


def cell_name(cell: Cell, comparison_counts: int) -> str:
    """`asgd`, and with how many workers where that is not clear."""
    if comparison_counts < 2 or cell.workers == 1:
        return cell.mode
    return f"{cell.mode} with {cell.workers} workers"


def worker_counts(cells: dict[str, Cell], baseline: str) -> list[int]:
    return sorted({cell.workers for label, cell in cells.items() if label != baseline})


def names(comparison: Comparison) -> dict[str, str]:
    count = len(worker_counts(comparison.cells, comparison.baseline))
    return {label: cell_name(cell, count) for label, cell in comparison.cells.items()}
