"""Report page of finished runs: of one, of several side by side, or of a comparison again."""

import math
from collections.abc import Sequence
from pathlib import Path

from paceline.comparison.assess import CURVE_POINTS
from paceline.comparison.measurement import Measured, first_step_ns, read_run
from paceline.comparison.report import formatting
from paceline.comparison.report.comparison import write_all
from paceline.comparison.report.figures import (
    Figure,
    evaluation_figures,
    loss_figure,
    phase_figure,
    staleness_figure,
)
from paceline.comparison.report.svg import draw, write_plots
from paceline.comparison.schema import read
from paceline.core.errors import PacelineError
from paceline.core.html import Markup, number_cell, tag
from paceline.core.html_page import definitions, page, scrolling
from paceline.events.performance import downsample
from paceline.events.schema import PHASES
from paceline.plan.catalog import hides_waiting
from paceline.plan.explain import explain

MAX_EVENTS = 300


def run_page(runs: Sequence[Measured], names: Sequence[str]) -> str:
    """One run, or several side by side; `names` tell them apart."""
    title = f"Run {names[0]}" if len(runs) == 1 else f"{len(runs)} runs side by side"
    return page(
        title,
        tag("h1", title),
        _about(runs),
        tag("h2", "The numbers"),
        scrolling("Numbers of every run", _numbers(runs, names)),
        tag("h2", "Pictures"),
        tag("div", [draw(figure) for figure in run_figures(runs, names)], class_="figures"),
        *(_events(run, name) for run, name in zip(runs, names, strict=True)),
        *(_plan(run, name) for run, name in zip(runs, names, strict=True)),
    )


def _about(runs: Sequence[Measured]) -> Markup:
    samples = {run.plan.total_samples for run in runs}
    tasks = {run.plan.task for run in runs}
    if len(runs) == 1:
        plan = runs[0].plan
        workers = "1 worker" if plan.processes == 1 else f"{plan.processes} workers"
        text = f"Task {plan.task}, mode {plan.mode}, {workers}, {plan.steps:,} steps."
        if runs[0].stopped_by:
            text += f" It was stopped before its end by {runs[0].stopped_by}."
    elif len(samples) == 1 and len(tasks) == 1:
        text = f"All trained {tasks.pop()} on {samples.pop():,} samples."
    else:
        text = (
            "These runs did not do the same work, so their times are not comparable; paceline compare "
            "trains runs that are."
        )
    return tag("p", text, class_="soft")


def _numbers(runs: Sequence[Measured], names: Sequence[str]) -> Markup:
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    heads = ["mode", "workers", "time", "samples/s", "final loss"]
    heads += [name.replace("_", " ") for name in metrics]
    heads += ["sent", "received", "staleness", "waiting"]
    body = [
        tag("tr", tag("th", name, scope="row"), _row(run, name, metrics))
        for run, name in zip(runs, names, strict=True)
    ]
    head = [tag("th", h, scope="col", class_="number") for h in heads]
    return tag(
        "table",
        tag("caption", "Time is from the start of the first step to the end of the last one."),
        tag("thead", tag("tr", tag("th", "run", scope="col"), head)),
        tag("tbody", body),
    )


def _row(run: Measured, name: str, metrics: Sequence[str]) -> list[Markup]:
    stale = "–" if run.staleness is None else f"{run.staleness.mean:.2f}, max {run.staleness.max}"
    busy = sum(run.phases_s.values())
    hides = hides_waiting(run.plan.mode)  # torch waits inside backward
    waiting = "hidden" if hides or not busy else formatting.percent(run.phases_s["wait"] / busy)
    return [
        tag("td", run.plan.mode, class_="number"),
        number_cell(str(run.plan.processes), f"{name}/workers", run.plan.processes),
        number_cell(formatting.seconds(run.seconds), f"{name}/seconds", run.seconds),
        number_cell(f"{run.samples_per_s:,.0f}", f"{name}/samples_per_s", run.samples_per_s),
        number_cell(_short(run.loss), f"{name}/loss", _finite(run.loss)),
        *(number_cell(_short(v), f"{name}/{m}", _finite(v)) for m in metrics for v in [run.metrics.get(m)]),
        number_cell(formatting.megabytes(run.bytes_out), f"{name}/bytes_out", run.bytes_out),
        number_cell(formatting.megabytes(run.bytes_in), f"{name}/bytes_in", run.bytes_in),
        tag("td", stale, class_="number"),
        tag("td", waiting, class_="number"),
    ]


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def run_figures(runs: Sequence[Measured], names: Sequence[str]) -> list[Figure]:
    curves = [(name, downsample(run.points, CURVE_POINTS)) for run, name in zip(runs, names, strict=True)]
    figures: list[Figure | None] = [
        loss_figure(
            "loss-over-time",
            "Loss over time",
            "seconds",
            [(name, tuple((p.seconds, _finite(p.loss)) for p in points)) for name, points in curves],
            "Training loss against seconds since the first step.",
        ),
        loss_figure(
            "loss-over-samples",
            "Loss over samples",
            "samples",
            [(name, tuple((p.samples, _finite(p.loss)) for p in points)) for name, points in curves],
            "Training loss against samples trained on.",
        ),
        *evaluation_figures(
            [
                (name, number, [(e.seconds, e.metrics) for e in run.evaluations])
                for number, (run, name) in enumerate(zip(runs, names, strict=True))
                if run.evaluations
            ],
            "as it was evaluated during the run",
        ),
        phase_figure(*_phases(runs, names)),
        staleness_figure(
            {n: r.staleness.histogram for r, n in zip(runs, names, strict=True) if r.staleness is not None},
            {name: name for name in names},
            {name: number for number, name in enumerate(names)},
        ),
    ]
    return [figure for figure in figures if figure is not None]


def _phases(
    runs: Sequence[Measured], names: Sequence[str]
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Of one run, by worker; of several, by run."""
    if len(runs) > 1:
        sums = {name: run.phases_s for run, name in zip(runs, names, strict=True)}
    else:
        sums = {
            f"worker {rank}": {p: sum(getattr(row, f"{p}_ns") for row in rows) / 1e9 for p in PHASES}
            for rank, rows in sorted(runs[0].history.steps.items())
        }
    shares = {
        label: {p: value / (sum(phases.values()) or 1.0) for p, value in phases.items()}
        for label, phases in sums.items()
    }
    return shares, {label: label for label in shares}


def _events(run: Measured, name: str) -> list[Markup]:
    start_ns = first_step_ns(run.history)
    events = [event for event in run.history.plain if event.kind != "evaluated"]
    rows = [
        tag(
            "tr",
            tag("td", f"{(event.at_ns - start_ns) / 1e9:.3f} s", class_="number"),
            tag("td", event.who),
            tag("th", event.kind.replace("_", " "), scope="row"),
            tag("td", ", ".join(f"{key}: {value}" for key, value in event.fields.items())),
        )
        for event in events[:MAX_EVENTS]
    ]
    more = len(events) - len(rows)
    caption = "Seconds since the first step" + (f"; {more} more are in events.jsonl" if more else "") + "."
    heads = [tag("th", h, scope="col") for h in ("when", "who", "what", "more")]
    table = tag("table", tag("caption", caption), tag("thead", tag("tr", heads)), tag("tbody", rows))
    return [tag("h2", f"Events of {name}"), scrolling(f"Events of {name}", table)]


def _plan(run: Measured, name: str) -> list[Markup]:
    lines: dict[str, str] = {}
    for line in explain(run.plan):
        lines[line.topic] = f"{lines[line.topic]}; {line.text}" if line.topic in lines else line.text
    return [tag("h2", f"Plan of {name}"), definitions(lines)]


def report(folders: Sequence[Path], out: Path) -> list[Figure]:
    """Writes report.html and pictures into `out`, and answers with the figures.

    The folder of a comparison is reported from its comparison.json.
    """
    compared = [folder for folder in folders if (folder / "comparison.json").exists()]
    if compared and len(folders) > 1:
        raise PacelineError(
            f"{compared[0]} is a comparison, which has a report of its own",
            f"name runs only, such as {compared[0]}/runs/*, or the comparison alone",
        )
    if compared:
        comparison = read(compared[0] / "comparison.json")
        out.mkdir(parents=True, exist_ok=True)
        return write_all(comparison, out)
    names = short_names(folders)
    runs = [read_run(folder) for folder in folders]
    figures = run_figures(runs, names)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(run_page(runs, names), encoding="utf-8")
    write_plots(figures, out / "plots")
    return figures


def short_names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with those above where two are called the same."""
    whole = [folder.resolve() for folder in folders]
    for parts in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-parts:]) for path in whole]
        if len(set(names)) == len(names):
            return names
    raise PacelineError(f"{folders[0]} is named twice", "name each run once")
