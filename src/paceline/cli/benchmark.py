"""`paceline benchmark`: one process against many, and other people's ways of distributing beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.commands import LazyGroup
from paceline.cli.options import Body, common_options
from paceline.cli.output import emit, print_message
from paceline.comparison.report import formatting
from paceline.config.values import RawSetting
from paceline.core.environ import benchmark_variables
from paceline.core.errors import ConfigError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.comparison.benchmark.runner import UpcomingRun
    from paceline.comparison.benchmark.schema import Benchmark, Row


# name: (module, attribute that holds the click command, help in one line)
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "keras": (
        "paceline.cli.benchmark_keras",
        "keras",
        "Compare Keras `fit` with Ray Train's TensorflowTrainer.",
    ),
    "torch": (
        "paceline.cli.benchmark_torch",
        "torch",
        "Compare plain torch, torch DDP, Ray Train and Paceline modes.",
    ),
}


class _Benchmarks(LazyGroup):
    """A benchmark's module is imported only when it runs."""

    table = _COMMANDS
    path = "benchmark"


@click.group("benchmark", cls=_Benchmarks)
@common_options
def benchmark(session: Session) -> None:
    """Train one model on one process and distributed, on the same data and global batch, and compare.

    Speedup and efficiency are reported for the total time and for the steady state. The variables EPOCHS,
    BATCH_SIZE and NUM_WORKERS are the defaults of the options with the same names.
    """


def out_option(body: Body) -> Body:
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("benchmark"),
        show_default=True,
        help="Folder for results, plots and the report.",
    )(body)


def repeats_option(body: Body) -> Body:
    return click.option(
        "--repeats",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Number of runs per contender.",
    )(body)


def number_setting(key: str, given: int | None, default: int) -> int:
    """The flag, else its variable (`epochs`: EPOCHS), else the default."""
    if given is not None:
        return given
    text = benchmark_variables().get(key)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        message = f"{key} is {text!r}, but it must be a whole number, 1 or more"
        name = key.upper()
        raise ConfigError([Problem(message, f"set {name} to {default}, for example, or unset it", name)])
    return number


def with_benchmark_variables(flags: Sequence[RawSetting], other_keys: Sequence[str] = ()) -> list[RawSetting]:
    """The flags, and the variables of keys that are not given otherwise.

    `other_keys` are given by another source. If steps are given, EPOCHS is ignored.
    """
    ignored = {entry.key for entry in flags} | set(other_keys)
    if "steps" in ignored:
        ignored.add("epochs")
    variables = benchmark_variables()
    more = [RawSetting(key=k, raw=v, where=k.upper()) for k, v in variables.items() if k not in ignored]
    return [*flags, *more]


def show_benchmark(session: Session, command: str, benchmark: "Benchmark", folder: Path) -> None:
    """The end of a benchmark command: `command` is `benchmark.torch`, for example."""
    from paceline.comparison.schema import finite
    from paceline.plan.codec import to_json

    warnings = [f"warning: {text}" for text in benchmark.warnings]
    lines = [*benchmark_table(benchmark), "", *warnings, *benchmark.says, f"report: {folder / 'report.html'}"]
    emit(session, command, {"out": str(folder), "comparison": finite(to_json(benchmark))}, lines)


def show_side(session: Session, command: str, benchmark: "Benchmark", folder: Path) -> None:
    """The end of a benchmark with one contender, which was compared with nothing."""
    from paceline.comparison.benchmark.runner import results_of
    from paceline.comparison.schema import finite

    ((file, result),) = results_of(benchmark).items()
    (row,) = benchmark.rows.values()
    value = None if row.quality is None else row.quality.value
    quality = (
        ""
        if value is None
        else f", {_quality_name(benchmark)} {formatting.quality(value, benchmark.quality)}"
    )
    lines = [
        f"{row.title}: {row.workers} {'worker' if row.workers == 1 else 'workers'},"
        f" {formatting.seconds(row.total_s)} in all{quality}",
        "There is no comparison yet: run the other side with the same settings and --out.",
        f"results: {folder / file}",
    ]
    emit(session, command, {"out": str(folder), "file": file, "result": finite(result)}, lines)


def announce_turn(session: Session, upcoming: "UpcomingRun") -> None:
    """Before each turn."""
    from paceline.core.humanize import short_duration

    left = "" if upcoming.left_s is None else f", about {short_duration(upcoming.left_s)} left"
    print_message(session, f"  {upcoming.number}/{upcoming.count}  {upcoming.title}{left}")


def benchmark_table(benchmark: "Benchmark") -> list[str]:
    width = max(12, *(len(row.title) + 2 for row in benchmark.rows.values()))
    quality = _quality_name(benchmark)
    head = f"{'':<{width}}{'workers':>8}{'start':>9}{'total':>9}{'speedup':>9}{'effic.':>8}"
    head += f"{'samples/s':>11}{'speedup':>9}{'effic.':>8}{quality[:14]:>15}{'difference':>12}"
    top = f"{'':<{width + 17}}{'total time':>26}{'steady rate':>28}"
    lines = [top.rstrip(), head, "-" * len(head)]
    return lines + [_line(row, width, benchmark) for row in benchmark.rows.values()]


def _quality_name(benchmark: "Benchmark") -> str:
    return "quality" if benchmark.quality is None else formatting.quality_name(benchmark.quality)


def _line(row: "Row", width: int, benchmark: "Benchmark") -> str:
    rate = row.steady_samples_per_s
    steady = row.speedup_steady
    lasting = row.efficiency_steady
    start = "-" if row.first_step_s is None else f"{row.first_step_s:.2f}s"
    value = None if row.quality is None else row.quality.value
    return (
        f"{row.title:<{width}}{row.workers:>8}{start:>9}{row.total_s:>8.2f}s"
        f"{row.speedup_total.value:>8.2f}x{row.efficiency_total.value:>8.0%}"
        f"{'-' if rate is None else f'{rate:,.0f}':>11}"
        f"{'-' if steady is None else f'{steady.value:.2f}x':>9}"
        f"{'-' if lasting is None else f'{lasting.value:.0%}':>8}"
        f"{formatting.quality(value, benchmark.quality):>15}"
        f"{formatting.quality_difference(row.quality_difference, benchmark.quality):>12}"
    )
