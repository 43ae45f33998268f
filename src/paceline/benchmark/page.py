"""What does a person read to know what distributing was worth? Sentences, a table, pictures, how."""

from collections.abc import Callable, Iterable

from paceline.benchmark.compared import Benchmark, Row
from paceline.benchmark.figures import colours, figures_of
from paceline.report import words
from paceline.report.comparison import Estimate, Machine
from paceline.report.elements import Markup, number_cell, tag
from paceline.report.page import definitions, page, scrolling
from paceline.report.svg import colour_class, draw


def benchmark_page(benchmark: Benchmark) -> str:
    title = f"{benchmark.task}: one process against {benchmark.num_workers} workers"
    repeats = "one repeat" if benchmark.repeats == 1 else f"{benchmark.repeats} repeats"
    return page(
        title,
        tag("h1", title),
        tag("p", f"{len(benchmark.rows)} contenders, {repeats}.", class_="soft"),
        _said(benchmark),
        tag("h2", "The numbers"),
        scrolling("Times, rates and quality of everybody", _table(benchmark)),
        tag("h2", "Pictures"),
        tag("div", [draw(figure) for figure in figures_of(benchmark)], class_="figures"),
        tag("h2", "How it was measured"),
        definitions({**benchmark.how, **_machine(benchmark.machine), **_more(benchmark)}),
    )


def _said(benchmark: Benchmark) -> Markup:
    first, *others = benchmark.says
    said = tag(
        "div",
        tag("h2", "What it was worth", style="margin-top:0"),
        tag("p", first, class_="headline"),
        tag("ul", [tag("li", text) for text in others]),
        class_="verdict",
    )
    items = [tag("li", text) for text in benchmark.warnings]
    if not items:
        return tag("section", said, aria_label="Result")
    warned = tag("div", tag("h2", "Before you believe it"), tag("ul", items), class_="verdict warnings")
    return tag("section", said, warned, aria_label="Result")


def _table(benchmark: Benchmark) -> Markup:
    judged = benchmark.quality
    quality = "quality" if judged is None else words.quality_name(judged)
    heads = ["workers", "batch, of each", "start", "total", "speedup, total", "efficiency, total"]
    heads += ["samples/s, steady", "speedup, steady", "efficiency, steady", quality, "difference"]
    numbers, body = colours(benchmark), []
    for name, row in benchmark.rows.items():
        chip = tag("span", class_=f"chip {colour_class(numbers[name])}", aria_hidden="true")
        shown = row.title + (" (baseline)" if name == benchmark.baseline else "")
        body.append(tag("tr", tag("th", chip, shown, scope="row"), _cells(benchmark, row)))
    caption = (
        "Medians of the repeats; small print: 95 % intervals. Total: from the call to its result. Start: to"
        " the beginning of the first step. Steady: without the beginning."
    )
    top = [tag("th", "who", scope="col"), *(tag("th", h, scope="col", class_="number") for h in heads)]
    return tag("table", tag("caption", caption), tag("thead", tag("tr", top)), tag("tbody", body))


def _cells(benchmark: Benchmark, row: Row) -> list[Markup]:
    key, judged = f"/rows/{row.name}", benchmark.quality
    rate, factor = row.steady_samples_per_s, 100.0 if judged is not None and judged.is_share else 1.0
    return [
        number_cell(str(row.workers), f"{key}/workers", row.workers),
        number_cell(str(row.worker_batch), f"{key}/worker_batch", row.worker_batch),
        number_cell(words.seconds(row.first_step_s), f"{key}/first_step_s", row.first_step_s),
        number_cell(words.seconds(row.total_s), f"{key}/total_s", row.total_s, _each(row.total_s_all)),
        _estimated(row.speedup_total, f"{key}/speedup_total", words.times),
        _estimated(row.efficiency_total, f"{key}/efficiency_total", words.percent, 100.0, 0),
        number_cell("–" if rate is None else f"{rate:,.0f}", f"{key}/steady_samples_per_s", rate),
        _estimated(row.speedup_steady, f"{key}/speedup_steady", words.times),
        _estimated(row.efficiency_steady, f"{key}/efficiency_steady", words.percent, 100.0, 0),
        _estimated(row.quality, f"{key}/quality", lambda value: words.quality(value, judged), factor, 1),
        _estimated(
            row.quality_difference,
            f"{key}/quality_difference",
            lambda _: words.quality_difference(row.quality_difference, judged),
            factor,
            1,
        ),
    ]


def _estimated(
    estimate: Estimate | None, key: str, shown: Callable[[float], str], factor: float = 1.0, digits: int = 2
) -> Markup:
    if estimate is None:
        return tag("td", "–", class_="number")
    note = words.between(estimate, digits, factor)
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
    found = {}
    for row in benchmark.rows.values():
        facts = [f"{name}: {value}" for name, value in row.facts.items()]
        if row.cluster is not None:
            c = row.cluster
            memory = f", {c.memory_bytes / 2**30:.1f} GiB" if c.memory_bytes else ""
            facts.append(f"cluster of {c.nodes} nodes, {c.cpus:g} CPUs, {c.gpus:g} GPUs{memory}")
        if facts:
            found[row.title] = "; ".join(facts)
    return {**found, "Paceline": benchmark.paceline, "Runs, as started": ", ".join(benchmark.order)}
