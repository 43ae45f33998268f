"""Which files does a comparison leave, and what is in each?

`comparison.json` is everything; the others say parts of it in other ways: a CSV
with a line per contender, a results file for each as the classic baseline
scripts write them, pictures, and a page.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.plan.codec import Json
from paceline.report.comparison import Cell, Comparison, dumps, finite
from paceline.report.comparison_figures import figures_of
from paceline.report.comparison_page import comparison_page
from paceline.report.figures import Figure
from paceline.report.plots import draw_all


def write_all(comparison: Comparison, folder: Path) -> list[Figure]:
    (folder / "comparison.json").write_text(dumps(comparison), encoding="utf-8")
    (folder / "comparison.csv").write_text(csv_of(comparison), encoding="utf-8")
    for name, result in results_of(comparison).items():
        (folder / name).write_text(json.dumps(finite(result), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(comparison_page(comparison), encoding="utf-8")
    figures = figures_of(comparison)
    draw_all(figures, folder / "plots")
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
    quality, difference, stale = cell.quality, cell.quality_difference, cell.staleness
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
    """By file name: `baseline_results.json`, and `ssgd_results_4workers.json` for each contender."""
    found = {}
    for label, cell in comparison.cells.items():
        is_baseline = label == comparison.baseline
        stem = label.rpartition("-")[0]
        name = "baseline_results.json" if is_baseline else f"{stem}_results_{cell.workers}workers.json"
        found[name] = _result(comparison, cell, is_baseline=is_baseline)
    return found


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
