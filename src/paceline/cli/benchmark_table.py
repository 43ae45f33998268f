"""How is a benchmark shown in a terminal? A line for each contender, and how it is answered in JSON."""

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.report import words

if TYPE_CHECKING:
    from paceline.app.benchmark import Coming
    from paceline.benchmark.compared import Benchmark, Row


def show(session: Session, command: str, benchmark: "Benchmark", folder: Path) -> None:
    """The end of a benchmark command: `command` is `benchmark.torch`, for example."""
    from paceline.plan.codec import to_json
    from paceline.report.comparison import finite
    from paceline.report.plots import can_draw

    if not can_draw():
        say(session, "note: no picture files, as matplotlib is not installed: pip install 'paceline[report]'")
    warnings = [f"warning: {text}" for text in benchmark.warnings]
    lines = [*table(benchmark), "", *warnings, *benchmark.says, f"report: {folder / 'report.html'}"]
    emit(session, command, {"out": str(folder), "comparison": finite(to_json(benchmark))}, lines)


def tell(session: Session, coming: "Coming") -> None:
    """Before each turn."""
    from paceline.cli.units import short_duration

    left = "" if coming.left_s is None else f", about {short_duration(coming.left_s)} left"
    say(session, f"  {coming.number}/{coming.count}  {coming.title}{left}")


def table(benchmark: "Benchmark") -> list[str]:
    width = max(12, *(len(row.title) + 2 for row in benchmark.rows.values()))
    quality = "quality" if benchmark.quality is None else words.quality_name(benchmark.quality)
    head = f"{'':<{width}}{'workers':>8}{'start':>9}{'total':>9}{'speedup':>9}{'effic.':>8}"
    head += f"{'samples/s':>11}{'speedup':>9}{'effic.':>8}{quality[:14]:>15}{'difference':>12}"
    top = f"{'':<{width + 17}}{'total time':>26}{'steady rate':>28}"
    lines = [top.rstrip(), head, "-" * len(head)]
    return lines + [_line(row, width, benchmark) for row in benchmark.rows.values()]


def _line(row: "Row", width: int, benchmark: "Benchmark") -> str:
    rate, steady, lasting = row.steady_samples_per_s, row.speedup_steady, row.efficiency_steady
    start = "-" if row.first_step_s is None else f"{row.first_step_s:.2f}s"
    value = None if row.quality is None else row.quality.value
    return (
        f"{row.title:<{width}}{row.workers:>8}{start:>9}{row.total_s:>8.2f}s"
        f"{row.speedup_total.value:>8.2f}x{row.efficiency_total.value:>8.0%}"
        f"{'-' if rate is None else f'{rate:,.0f}':>11}"
        f"{'-' if steady is None else f'{steady.value:.2f}x':>9}"
        f"{'-' if lasting is None else f'{lasting.value:.0%}':>8}"
        f"{words.quality(value, benchmark.quality):>15}"
        f"{words.quality_difference(row.quality_difference, benchmark.quality):>12}"
    )
