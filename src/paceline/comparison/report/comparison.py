"""Files of a comparison: JSON, CSV, results files, plots and the report page.

`comparison.json` is everything; the others hold parts of it: a CSV
with a line per contender, a results file for each as the classic baseline
scripts write them, pictures, and a page.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from paceline.comparison.report import formatting
from paceline.comparison.report.figures import Figure, colours, figures_of
from paceline.comparison.report.svg import colour_class, draw, write_plots
from paceline.comparison.schema import Cell, Comparison, Estimate, Machine, dumps, finite
from paceline.core.html import Markup, number_cell, tag
from paceline.core.html_page import definitions, page, scrolling
from paceline.plan.catalog import hides_waiting
from paceline.plan.codec import Json


def comparison_page(comparison: Comparison) -> str:
    title = f"{comparison.task}: comparison of strategies"
    counts = " and ".join(str(n) for n in formatting.worker_counts(comparison.cells, comparison.baseline))
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
        tag("h2", "Cost"),
        scrolling("Bytes, staleness and waiting of every mode", _cost_table(comparison)),
        tag("h2", "Pictures"),
        tag("div", [draw(figure) for figure in figures_of(comparison)], class_="figures"),
        *_scaling(comparison),
        tag("h2", "How it was measured"),
        definitions({**comparison.how, **_machine(comparison.machine), **_runs(comparison)}),
    )


def _verdict(comparison: Comparison) -> Markup:
    verdict = comparison.verdict
    names = formatting.names(comparison)
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
    return tag("div", tag("h2", "Limitations"), tag("ul", items), class_="verdict warnings")


def _speed_table(comparison: Comparison) -> Markup:
    judged = comparison.quality
    quality = "quality" if judged is None else formatting.quality_name(judged)
    difference = "difference, points" if judged is not None and judged.is_share else "difference"
    heads = ("workers", "time", "speedup", "efficiency", quality, difference, "time to target")
    rows = [_speed_row(comparison, cell) for cell in comparison.cells.values()]
    caption = (
        "Time is the median of the repeats. Small print: the fastest and the slowest repeat, 95 % "
        "confidence intervals, and the significance of the difference to the baseline."
    )
    return _table(caption, heads, rows, comparison)


def _speed_row(comparison: Comparison, cell: Cell) -> list[Markup]:
    key = f"/cells/{cell.label}"
    judged = comparison.quality
    quality = cell.quality
    difference = cell.quality_difference
    factor, digits = (100.0, 1) if judged is not None and judged.is_share else (1.0, 4)
    quality_cell = tag("td", "–", class_="number")
    if quality is not None:
        text = formatting.quality(quality.value, judged)
        quality_cell = _estimate_cell(text, f"{key}/quality", quality, digits, factor)
    is_baseline = cell.label == comparison.baseline
    difference_cell = tag("td", "–" if is_baseline else cell.quality_in_words, class_="number")
    if difference is not None:
        difference_cell = _estimate_cell(
            formatting.quality_difference(difference, judged),
            f"{key}/quality_difference",
            difference,
            digits,
            factor,
            cell.quality_in_words,
        )
    return [
        number_cell(str(cell.workers), f"{key}/workers", cell.workers),
        number_cell(formatting.seconds(cell.seconds), f"{key}/seconds", cell.seconds, _each(cell)),
        _estimate_cell(
            formatting.times(cell.speedup.value), f"{key}/speedup", cell.speedup, 2, 1, cell.speed_in_words
        ),
        _estimate_cell(
            formatting.percent(cell.efficiency.value), f"{key}/efficiency", cell.efficiency, 0, 100
        ),
        quality_cell,
        difference_cell,
        number_cell(formatting.seconds(cell.target_s), f"{key}/target_s", cell.target_s),
    ]


def _each(cell: Cell) -> str:
    return "" if len(cell.seconds_all) < 2 else f"{min(cell.seconds_all):.2f} to {max(cell.seconds_all):.2f}"


def _estimate_cell(
    text: str, key: str, estimate: Estimate, digits: int, factor: float, note: str = ""
) -> Markup:
    """The value, and under it the interval and what that means."""
    sure = formatting.between(estimate, digits, factor)
    ends = [
        tag("span", hidden=True, data_key=f"{key}/{end}", data_value=f"{value!r}")
        for end, value in (("low", estimate.low), ("high", estimate.high))
        if value is not None
    ]
    notes = [tag("span", note, class_="note") for note in (sure, note) if note]
    value = tag("span", text, data_key=f"{key}/value", data_value=f"{estimate.value!r}")
    return tag("td", value, notes, ends, class_="number")


def _cost_table(comparison: Comparison) -> Markup:
    heads = (
        "final loss",
        "sent",
        "received",
        "staleness, mean",
        "staleness, max",
        "waiting",
        "samples/s",
        "each repeat",
    )
    rows = []
    for cell in comparison.cells.values():
        key = f"/cells/{cell.label}"
        stale = cell.staleness
        each = ", ".join(f"{value:.2f}" for value in cell.seconds_all)
        waiting = cell.phases["wait"]
        hides = hides_waiting(cell.mode)  # torch waits inside backward
        rows.append(
            [
                number_cell("–" if cell.loss is None else f"{cell.loss:.4g}", f"{key}/loss", cell.loss),
                number_cell(formatting.megabytes(cell.bytes_out), f"{key}/bytes_out", cell.bytes_out),
                number_cell(formatting.megabytes(cell.bytes_in), f"{key}/bytes_in", cell.bytes_in),
                *_stale_cells(key, stale.mean if stale else None, stale.max if stale else None),
                number_cell(
                    "hidden" if hides else formatting.percent(waiting), f"{key}/phases/wait", waiting
                ),
                number_cell(f"{cell.samples_per_s:,.0f}", f"{key}/samples_per_s", cell.samples_per_s),
                tag("td", f"{each} s", class_="number"),
            ]
        )
    caption = (
        "Bytes sent and received by all workers, mean of the repeats. Staleness: updates between "
        "reading and applying."
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
    names = formatting.names(comparison)
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
            number_cell(formatting.percent(s.serial, 1), f"/scaling/{mode}/serial", s.serial),
            number_cell(
                "none" if s.limit is None else formatting.times(s.limit), f"/scaling/{mode}/limit", s.limit
            ),
        )
        for mode, s in comparison.scaling.items()
    ]
    heads = [tag("th", h, scope="col", class_="number") for h in ("serial share", "maximum speedup")]
    caption = (
        "Amdahl's law, fitted to all numbers of workers: the serial share of the work, and the "
        "maximum speedup that it allows."
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
    rows = {"Data": data} if data else {}
    return {
        **rows,
        "Paceline": comparison.paceline,
        "Runs, as started": ", ".join(comparison.order),
    }


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def write_all(comparison: Comparison, folder: Path) -> list[Figure]:
    (folder / "comparison.json").write_text(dumps(comparison), encoding="utf-8")
    (folder / "comparison.csv").write_text(csv_of(comparison), encoding="utf-8")
    for name, result in results_of(comparison).items():
        (folder / name).write_text(json.dumps(finite(result), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(comparison_page(comparison), encoding="utf-8")
    figures = figures_of(comparison)
    write_plots(figures, folder / "plots")
    return figures


def csv_of(comparison: Comparison) -> str:
    return csv_with_heads([_row(cell) for cell in comparison.cells.values()])


def csv_with_heads(rows: Sequence[Mapping[str, str | int | float | None]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(cell: Cell) -> dict[str, str | int | float | None]:
    quality = cell.quality
    difference = cell.quality_difference
    stale = cell.staleness
    return {
        "mode": cell.mode,
        "num_workers": cell.workers,
        "seconds": cell.seconds,
        "speedup": cell.speedup.value,
        "speedup_low": cell.speedup.low,
        "speedup_high": cell.speedup.high,
        "speed": cell.speed_in_words,
        "efficiency": cell.efficiency.value,
        "samples_per_s": cell.samples_per_s,
        "quality": None if quality is None else quality.value,
        "quality_difference": None if difference is None else difference.value,
        "quality_difference_low": None if difference is None else difference.low,
        "quality_difference_high": None if difference is None else difference.high,
        "quality_said": cell.quality_in_words,
        "loss": cell.loss,
        "target_s": cell.target_s,
        "bytes_out": cell.bytes_out,
        "bytes_in": cell.bytes_in,
        "staleness_mean": None if stale is None else stale.mean,
        "staleness_max": None if stale is None else stale.max,
        **{f"share_{name}": share for name, share in cell.phases.items()},
        "seconds_all": " ".join(f"{value:.6g}" for value in cell.seconds_all),
    }


def results_of(comparison: Comparison) -> dict[str, dict[str, Json]]:
    """Results by file name: `baseline_results.json`, and `ssgd_results_4workers.json` for each contender."""
    results = {}
    for label, cell in comparison.cells.items():
        is_baseline = label == comparison.baseline
        stem = label.rpartition("-")[0]
        name = "baseline_results.json" if is_baseline else f"{stem}_results_{cell.workers}workers.json"
        results[name] = _result(comparison, cell, is_baseline=is_baseline)
    return results


def _result(comparison: Comparison, cell: Cell, *, is_baseline: bool) -> dict[str, Json]:
    result: dict[str, Json] = {
        "training_type": "baseline" if is_baseline else "distributed",
        "mode": cell.mode,
        "num_workers": cell.workers,
        "training_time_seconds": cell.seconds,
        "training_time_seconds_all": list(cell.seconds_all),
        "epochs_completed": cell.epochs,
        "steps_completed": comparison.steps,
        "samples_trained": comparison.samples,
        "batch_size": comparison.samples_per_step,
        **cell.metrics,
        "samples_per_second": cell.samples_per_s,
        "final_training_loss": cell.loss,
        "task": comparison.task,
        "repeats": comparison.repeats,
        "cpus": comparison.machine.processors,
        "paceline": comparison.paceline,
    }
    result.setdefault("test_accuracy", None)
    if cell.data:
        result["data"] = cell.data
    if not is_baseline:
        result |= {"speedup": cell.speedup.value, "efficiency": cell.efficiency.value}
    return result
