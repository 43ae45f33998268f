"""Benchmark report page: sentences, warnings, the table, figures and how it was measured."""

from collections.abc import Callable, Iterable

from paceline.comparison.benchmark.schema import Benchmark, Row
from paceline.comparison.report import formatting
from paceline.comparison.report.figures import Bar, BarFigure, Figure, Line, LineFigure
from paceline.comparison.report.svg import colour_class, draw
from paceline.comparison.schema import Estimate, Machine
from paceline.core.html import Markup, number_cell, tag
from paceline.core.html_page import definitions, page, scrolling


def figures_of(benchmark: Benchmark) -> list[Figure]:
    total = [
        _speedup(benchmark, "total", lambda row: row.speedup_total),
        _efficiency(benchmark, "total", lambda row: row.efficiency_total),
    ]
    steady = [
        _speedup(benchmark, "steady", lambda row: row.speedup_steady),
        _efficiency(benchmark, "steady", lambda row: row.efficiency_steady),
    ]
    shown = [figure for figure in (*total, *steady) if figure.bars]
    return [*shown, _time(benchmark), *_curves(benchmark)]


def colours(benchmark: Benchmark) -> dict[str, int]:
    """Each contender keeps its colour in every figure."""
    return {name: number for number, name in enumerate(benchmark.rows)}


_OF = {"total": "total time", "steady": "steady rate"}


def _speedup(benchmark: Benchmark, kind: str, of: Callable[[Row], Estimate | None]) -> BarFigure:
    most = max(row.workers for row in benchmark.rows.values())
    return BarFigure(
        name=f"speedup-{kind}",
        title=f"Speedup of the {_OF[kind]}",
        x=f"times as fast as {benchmark.rows[benchmark.baseline].title}",
        says=f"How many times as fast as the baseline each was, by {_OF[kind]}; {most} would be ideal.",
        bars=_bars(benchmark, of, formatting.times),
        mark=(float(most), f"ideal: {most}"),
    )


def _efficiency(benchmark: Benchmark, kind: str, of: Callable[[Row], Estimate | None]) -> BarFigure:
    return BarFigure(
        name=f"efficiency-{kind}",
        title=f"Efficiency of the {_OF[kind]}",
        x="speedup over workers",
        says=f"Speedup of the {_OF[kind]} divided by the number of workers; 100 % would be ideal.",
        bars=_bars(benchmark, of, formatting.percent),
        mark=(1.0, "ideal"),
        is_share=True,
    )


def _bars(
    benchmark: Benchmark, of: Callable[[Row], Estimate | None], shown: Callable[[float], str]
) -> tuple[Bar, ...]:
    numbers = colours(benchmark)
    bars = []
    for name, row in benchmark.rows.items():
        if (estimate := of(row)) is not None:
            parts = ((row.title, numbers[name], estimate.value),)
            note = shown(estimate.value)
            bars.append(Bar(label=row.title, parts=parts, note=note, error=_error(estimate)))
    return tuple(bars)


def _time(benchmark: Benchmark) -> BarFigure:
    bars = []
    for row in benchmark.rows.values():
        begun_s = min(row.total_s, row.first_step_s or 0.0)
        parts = (("before the first step", 7, begun_s), ("from then on", 0, row.total_s - begun_s))
        bars.append(Bar(label=row.title, parts=parts, note=formatting.seconds(row.total_s)))
    return BarFigure(
        name="time",
        title="Where the time went",
        x="seconds from the call to its result",
        says="Total time of each, split at the start of the first step.",
        bars=tuple(bars),
    )


def _curves(benchmark: Benchmark) -> list[LineFigure]:
    """One for each metric that was seen on the way."""
    numbers = colours(benchmark)
    seen = {name: row.history for name, row in benchmark.rows.items() if row.history}
    metrics = dict.fromkeys(metric for rows in seen.values() for row in rows for metric in row.metrics)
    return [
        LineFigure(
            name=f"curve-{metric.replace('_', '-')}",
            title=f"{metric.replace('_', ' ').capitalize()} by epoch",
            x="epochs",
            y=metric.replace("_", " "),
            says=f"{metric.replace('_', ' ').capitalize()} of one repeat of each. Overlapping lines mean "
            "equal learning per epoch.",
            lines=tuple(
                Line(
                    label=benchmark.rows[name].title,
                    colour=numbers[name],
                    points=tuple((row.epoch, row.metrics.get(metric)) for row in rows),
                    has_marks=len(rows) <= 30,
                )
                for name, rows in seen.items()
                if any(metric in row.metrics for row in rows)
            ),
        )
        for metric in metrics
    ]


def _error(estimate: Estimate) -> tuple[float, float] | None:
    return None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)


def benchmark_page(benchmark: Benchmark) -> str:
    title = f"{benchmark.task}: one process against {benchmark.num_workers} workers"
    repeats = "one repeat" if benchmark.repeats == 1 else f"{benchmark.repeats} repeats"
    return page(
        title,
        tag("h1", title),
        tag("p", f"{len(benchmark.rows)} contenders, {repeats}.", class_="soft"),
        _result_section(benchmark),
        tag("h2", "The numbers"),
        scrolling("Times, rates and quality of all contenders", _table(benchmark)),
        tag("h2", "Pictures"),
        tag("div", [draw(figure) for figure in figures_of(benchmark)], class_="figures"),
        tag("h2", "How it was measured"),
        definitions({**benchmark.how, **_machine(benchmark.machine), **_more(benchmark)}),
    )


def _result_section(benchmark: Benchmark) -> Markup:
    first, *details = benchmark.says
    result = tag(
        "div",
        tag("h2", "Result", style="margin-top:0"),
        tag("p", first, class_="headline"),
        tag("ul", [tag("li", text) for text in details]),
        class_="verdict",
    )
    items = [tag("li", text) for text in benchmark.warnings]
    if not items:
        return tag("section", result, aria_label="Result")
    warned = tag("div", tag("h2", "Limitations"), tag("ul", items), class_="verdict warnings")
    return tag("section", result, warned, aria_label="Result")


def _table(benchmark: Benchmark) -> Markup:
    judged = benchmark.quality
    quality = "quality" if judged is None else formatting.quality_name(judged)
    heads = ["workers", "batch, of each", "start", "total", "speedup, total", "efficiency, total"]
    heads += ["samples/s, steady", "speedup, steady", "efficiency, steady", quality, "difference"]
    numbers = colours(benchmark)
    body = []
    for name, row in benchmark.rows.items():
        chip = tag("span", class_=f"chip {colour_class(numbers[name])}", aria_hidden="true")
        shown = row.title + (" (baseline)" if name == benchmark.baseline else "")
        body.append(tag("tr", tag("th", chip, shown, scope="row"), _cells(benchmark, row)))
    caption = (
        "Medians of the repeats; small print: 95 % intervals. Total: from the call to its result. "
        "Start: until the first step. Steady: without the warm-up."
    )
    top = [tag("th", "who", scope="col"), *(tag("th", h, scope="col", class_="number") for h in heads)]
    return tag("table", tag("caption", caption), tag("thead", tag("tr", top)), tag("tbody", body))


def _cells(benchmark: Benchmark, row: Row) -> list[Markup]:
    key = f"/rows/{row.name}"
    judged = benchmark.quality
    rate = row.steady_samples_per_s
    factor = 100.0 if judged is not None and judged.is_share else 1.0
    return [
        number_cell(str(row.workers), f"{key}/workers", row.workers),
        number_cell(str(row.worker_batch), f"{key}/worker_batch", row.worker_batch),
        number_cell(formatting.seconds(row.first_step_s), f"{key}/first_step_s", row.first_step_s),
        number_cell(formatting.seconds(row.total_s), f"{key}/total_s", row.total_s, _each(row.total_s_all)),
        _estimated(row.speedup_total, f"{key}/speedup_total", formatting.times),
        _estimated(row.efficiency_total, f"{key}/efficiency_total", formatting.percent, 100.0, 0),
        number_cell("–" if rate is None else f"{rate:,.0f}", f"{key}/steady_samples_per_s", rate),
        _estimated(row.speedup_steady, f"{key}/speedup_steady", formatting.times),
        _estimated(row.efficiency_steady, f"{key}/efficiency_steady", formatting.percent, 100.0, 0),
        _estimated(row.quality, f"{key}/quality", lambda value: formatting.quality(value, judged), factor, 1),
        _estimated(
            row.quality_difference,
            f"{key}/quality_difference",
            lambda _: formatting.quality_difference(row.quality_difference, judged),
            factor,
            1,
        ),
    ]


def _estimated(
    estimate: Estimate | None, key: str, shown: Callable[[float], str], factor: float = 1.0, digits: int = 2
) -> Markup:
    if estimate is None:
        return tag("td", "–", class_="number")
    note = formatting.between(estimate, digits, factor)
    return number_cell(shown(estimate.value), f"{key}/value", estimate.value, note)


def _each(seconds: Iterable[float]) -> str:
    every = list(seconds)
    return "" if len(every) < 2 else f"{min(every):.2f} to {max(every):.2f}"


def _machine(machine: Machine) -> dict[str, str]:
    return {
        "Machine": f"{machine.cpu}, {machine.processors} processors, {machine.memory_bytes / 2**30:.1f} GiB,"
        f" {machine.system}; load before the first run {machine.load:.2f}",
        "Versions": f"Python {machine.python}, torch {machine.torch}",
    }


def _more(benchmark: Benchmark) -> dict[str, str]:
    facts_by_title = {}
    for row in benchmark.rows.values():
        facts = [f"{name}: {value}" for name, value in row.facts.items()]
        if row.cluster is not None:
            c = row.cluster
            memory = f", {c.memory_bytes / 2**30:.1f} GiB" if c.memory_bytes else ""
            facts.append(f"cluster of {c.nodes} nodes, {c.cpus:g} CPUs, {c.gpus:g} GPUs{memory}")
        if facts:
            facts_by_title[row.title] = "; ".join(facts)
    return {**facts_by_title, "Paceline": benchmark.paceline, "Runs, as started": ", ".join(benchmark.order)}
