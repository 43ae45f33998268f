"""What does a person read to know which mode to use, and why? Verdict, table, pictures, proof."""

from collections.abc import Iterable

from paceline.plan.catalog import hides_waiting
from paceline.report import words
from paceline.report.comparison import Cell, Comparison, Estimate, Machine
from paceline.report.comparison_figures import colours, figures_of
from paceline.report.elements import Markup, number_cell, tag
from paceline.report.page import definitions, page, scrolling
from paceline.report.svg import colour_class, draw


def comparison_page(comparison: Comparison) -> str:
    title = f"{comparison.task}: what was distributing worth?"
    counts = " and ".join(str(n) for n in words.worker_counts(comparison.cells, comparison.baseline))
    repeats = "one repeat" if comparison.repeats == 1 else f"{comparison.repeats} repeats"
    return page(
        title,
        tag("h1", title),
        tag(
            "p",
            f"{len(comparison.cells)} contenders, {counts} workers, {repeats},"
            f" {comparison.samples:,} samples each.",
            class_="soft",
        ),
        _verdict(comparison),
        tag("h2", "The numbers"),
        scrolling("Speed and quality of every mode", _speed_table(comparison)),
        tag("h2", "What it cost"),
        scrolling("Bytes, staleness and waiting of every mode", _cost_table(comparison)),
        tag("h2", "Pictures"),
        tag("div", [draw(figure) for figure in figures_of(comparison)], class_="figures"),
        *_scaling(comparison),
        tag("h2", "How it was measured"),
        definitions({**comparison.how, **_machine(comparison.machine), **_runs(comparison)}),
    )


def _verdict(comparison: Comparison) -> Markup:
    verdict, names = comparison.verdict, words.names(comparison)
    why_not = [
        tag("li", tag("strong", names[label]), f": {_lower_first(text)}")
        for label, text in verdict.others.items()
    ]
    return tag(
        "section",
        tag(
            "div",
            tag("h2", "Which mode to use", style="margin-top:0"),
            tag("p", verdict.headline, class_="headline", data_use=verdict.use),
            tag("ul", [tag("li", reason) for reason in verdict.reasons]),
            tag("h3", "Why not the others"),
            tag("ul", why_not),
            class_="verdict",
        ),
        _warnings(comparison.warnings),
        aria_label="Verdict",
    )


def _warnings(warnings: Iterable[str]) -> Markup | str:
    items = [tag("li", text) for text in warnings]
    if not items:
        return ""
    return tag("div", tag("h2", "Before you believe it"), tag("ul", items), class_="verdict warnings")


def _speed_table(comparison: Comparison) -> Markup:
    judged = comparison.quality
    quality = "quality" if judged is None else words.quality_name(judged)
    difference = "difference, points" if judged is not None and judged.is_share else "difference"
    heads = ("workers", "time", "speedup", "efficiency", quality, difference, "time to target")
    rows = [_speed_row(comparison, cell) for cell in comparison.cells.values()]
    caption = (
        "Time is the median of the repeats. Small print: the fastest and the slowest repeat, 95 % intervals,"
        " and what they say about the difference to the baseline."
    )
    return _table(caption, heads, rows, comparison)


def _speed_row(comparison: Comparison, cell: Cell) -> list[Markup]:
    key, judged = f"/cells/{cell.label}", comparison.quality
    quality, difference = cell.quality, cell.quality_difference
    factor, digits = (100.0, 1) if judged is not None and judged.is_share else (1.0, 4)
    is_baseline = cell.label == comparison.baseline
    return [
        number_cell(str(cell.workers), f"{key}/workers", cell.workers),
        number_cell(words.seconds(cell.seconds), f"{key}/seconds", cell.seconds, _each(cell)),
        _estimate_cell(
            words.times(cell.speedup.value), f"{key}/speedup", cell.speedup, 2, 1, cell.speed_in_words
        ),
        _estimate_cell(words.percent(cell.efficiency.value), f"{key}/efficiency", cell.efficiency, 0, 100),
        tag("td", "–", class_="number")
        if quality is None
        else _estimate_cell(words.quality(quality.value, judged), f"{key}/quality", quality, digits, factor),
        tag("td", "–" if is_baseline else cell.quality_in_words, class_="number")
        if difference is None
        else _estimate_cell(
            words.quality_difference(difference, judged),
            f"{key}/quality_difference",
            difference,
            digits,
            factor,
            cell.quality_in_words,
        ),
        number_cell(words.seconds(cell.target_s), f"{key}/target_s", cell.target_s),
    ]


def _each(cell: Cell) -> str:
    return "" if len(cell.seconds_all) < 2 else f"{min(cell.seconds_all):.2f} to {max(cell.seconds_all):.2f}"


def _estimate_cell(
    text: str, key: str, estimate: Estimate, digits: int, factor: float, said: str = ""
) -> Markup:
    """The value, and under it the interval and what that means."""
    sure = words.between(estimate, digits, factor)
    ends = [
        tag("span", hidden=True, data_key=f"{key}/{end}", data_value=f"{value!r}")
        for end, value in (("low", estimate.low), ("high", estimate.high))
        if value is not None
    ]
    notes = [tag("span", note, class_="note") for note in (sure, said) if note]
    value = tag("span", text, data_key=f"{key}/value", data_value=f"{estimate.value!r}")
    return tag("td", value, notes, ends, class_="number")


def _cost_table(comparison: Comparison) -> Markup:
    heads = (
        "loss at the end",
        "sent",
        "received",
        "staleness, mean",
        "staleness, most",
        "waiting",
        "samples/s",
        "each repeat",
    )
    rows = []
    for cell in comparison.cells.values():
        key, stale = f"/cells/{cell.label}", cell.staleness
        each = ", ".join(f"{value:.2f}" for value in cell.seconds_all)
        waiting = cell.phases["wait"]
        hides = hides_waiting(cell.mode)  # torch waits inside backward
        rows.append(
            [
                number_cell("–" if cell.loss is None else f"{cell.loss:.4g}", f"{key}/loss", cell.loss),
                number_cell(words.megabytes(cell.bytes_out), f"{key}/bytes_out", cell.bytes_out),
                number_cell(words.megabytes(cell.bytes_in), f"{key}/bytes_in", cell.bytes_in),
                *_stale_cells(key, stale.mean if stale else None, stale.max if stale else None),
                number_cell("hidden" if hides else words.percent(waiting), f"{key}/phases/wait", waiting),
                number_cell(f"{cell.samples_per_s:,.0f}", f"{key}/samples_per_s", cell.samples_per_s),
                tag("td", f"{each} s", class_="number"),
            ]
        )
    caption = (
        "Bytes of all workers together, mean of the repeats. Staleness: updates between reading and applying."
    )
    return _table(caption, heads, rows, comparison)


def _stale_cells(key: str, mean: float | None, most: int | None) -> list[Markup]:
    if mean is None or most is None:
        return [tag("td", "–", class_="number")] * 2
    return [
        number_cell(f"{mean:.2f}", f"{key}/staleness/mean", mean),
        number_cell(str(most), f"{key}/staleness/max", most),
    ]


def _table(caption: str, heads: Iterable[str], rows: list[list[Markup]], comparison: Comparison) -> Markup:
    numbers = colours(comparison)
    names = words.names(comparison)
    body = []
    for label, cells in zip(comparison.cells, rows, strict=True):
        name = names[label] + (" (baseline)" if label == comparison.baseline else "")
        chip = tag("span", class_=f"chip {colour_class(numbers[label])}", aria_hidden="true")
        is_used = label == comparison.verdict.use
        mark = tag("span", "use this", class_="note") if is_used else ""
        row = tag("th", chip, name, " ", mark, scope="row")
        body.append(tag("tr", row, cells, class_="use" if is_used else None))
    return tag(
        "table",
        tag("caption", caption),
        tag(
            "thead",
            tag(
                "tr",
                tag("th", "mode", scope="col"),
                [tag("th", h, scope="col", class_="number") for h in heads],
            ),
        ),
        tag("tbody", body),
    )


def _scaling(comparison: Comparison) -> list[Markup]:
    if not comparison.scaling:
        return []
    rows = [
        tag(
            "tr",
            tag("th", mode, scope="row"),
            number_cell(words.percent(s.serial, 1), f"/scaling/{mode}/serial", s.serial),
            number_cell(
                "none" if s.limit is None else words.times(s.limit), f"/scaling/{mode}/limit", s.limit
            ),
        )
        for mode, s in comparison.scaling.items()
    ]
    heads = [tag("th", h, scope="col", class_="number") for h in ("serial share", "speedup at most")]
    caption = (
        "Amdahl's law, fitted to all numbers of workers: the share of the work that more workers do not"
        " shorten, and the speedup that it allows at most."
    )
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", tag("th", "mode", scope="col"), heads)),
        tag("tbody", rows),
    )
    return [tag("h2", "With more workers"), scrolling("Amdahl's law for every mode", table)]


def _machine(machine: Machine) -> dict[str, str]:
    return {
        "Machine": f"{machine.cpu}, {machine.processors} processors, {machine.memory_bytes / 2**30:.1f} GiB,"
        f" {machine.system}; load before the first run {machine.load:.2f}",
        "Versions": f"Python {machine.python}, torch {machine.torch}",
    }


def _runs(comparison: Comparison) -> dict[str, str]:
    data = ", ".join(sorted({cell.data for cell in comparison.cells.values() if cell.data}))
    found = {"Data": data} if data else {}
    return {
        **found,
        "Paceline": comparison.paceline,
        "Runs, as started": ", ".join(comparison.order),
    }


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
