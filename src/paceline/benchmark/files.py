"""Which files does a benchmark leave? Results of each, the comparison, a table, pictures and a page."""

import json
from pathlib import Path

from paceline.benchmark.compared import Benchmark, Row, dumps
from paceline.benchmark.figures import figures_of
from paceline.benchmark.page import benchmark_page
from paceline.plan.codec import Json, to_json
from paceline.report.comparison import Estimate, finite
from paceline.report.files import csv_with_heads
from paceline.report.plots import draw_all

_WRITTEN = (
    "comparison.json",
    "comparison.csv",
    "report.html",
    "baseline_results.json",
    "*_results_*workers.json",
    *(
        f"plots/{name}.{kind}"
        for name in ("speedup-*", "efficiency-*", "time", "curve-*")
        for kind in ("png", "svg")
    ),
)


def write_all(benchmark: Benchmark, folder: Path) -> None:
    (folder / "comparison.json").write_text(dumps(benchmark), encoding="utf-8")
    (folder / "comparison.csv").write_text(csv_of(benchmark), encoding="utf-8")
    for name, result in results_of(benchmark).items():
        (folder / name).write_text(json.dumps(finite(result), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(benchmark_page(benchmark), encoding="utf-8")
    draw_all(figures_of(benchmark), folder / "plots")


def forget(folder: Path) -> None:
    """Remove what `write_all` has left there before, and nothing else."""
    for pattern in _WRITTEN:
        for path in folder.glob(pattern):
            path.unlink()


def results_of(benchmark: Benchmark) -> dict[str, dict[str, Json]]:
    """By file name: `baseline_results.json`, and `ray_results_2workers.json` for each of the others."""
    found = {}
    for name, row in benchmark.rows.items():
        is_baseline = name == benchmark.baseline
        file = "baseline_results.json" if is_baseline else f"{name}_results_{row.workers}workers.json"
        found[file] = _result(benchmark, row, is_baseline=is_baseline)
    return found


def _result(benchmark: Benchmark, row: Row, *, is_baseline: bool) -> dict[str, Json]:
    result: dict[str, Json] = {
        "training_type": "baseline" if is_baseline else "distributed",
        "name": row.name,
        "framework": row.framework,
        "task": benchmark.task,
        "num_workers": row.workers,
        "training_time_seconds": row.total_s,
        "training_time_seconds_all": list(row.total_s_all),
        "seconds_to_first_step": row.first_step_s,
        "steady_samples_per_second": row.steady_samples_per_s,
        "steady_without": row.warm_up,
        "epochs_completed": row.epochs,
        "steps_completed": row.steps,
        "samples_trained": row.samples,
        "batch_size": row.global_batch,
        "batch_size_per_worker": row.worker_batch,
        **row.metrics,
        "history": to_json(row.history),
        "facts": {**row.facts},
        "repeats": benchmark.repeats,
        "cpus": benchmark.machine.processors,
        "paceline": benchmark.paceline,
    }
    result.setdefault("test_accuracy", None)
    if row.cluster is not None:
        result |= {
            "ray_cluster_nodes": row.cluster.nodes,
            "ray_cluster_cpus": row.cluster.cpus,
            "ray_cluster_gpus": row.cluster.gpus,
            "ray_cluster_memory_bytes": row.cluster.memory_bytes,
        }
    if not is_baseline:
        result |= {
            "speedup": row.speedup_total.value,
            "efficiency": row.efficiency_total.value,
            "speedup_steady": _value(row.speedup_steady),
            "efficiency_steady": _value(row.efficiency_steady),
        }
    return result


def csv_of(benchmark: Benchmark) -> str:
    return csv_with_heads([_line(row) for row in benchmark.rows.values()])


def _line(row: Row) -> dict[str, str | int | float | None]:
    return {
        "name": row.name,
        "framework": row.framework,
        "num_workers": row.workers,
        "global_batch": row.global_batch,
        "worker_batch": row.worker_batch,
        "steps": row.steps,
        "samples": row.samples,
        "first_step_s": row.first_step_s,
        "total_s": row.total_s,
        "speedup_total": row.speedup_total.value,
        "efficiency_total": row.efficiency_total.value,
        "steady_samples_per_s": row.steady_samples_per_s,
        "speedup_steady": _value(row.speedup_steady),
        "efficiency_steady": _value(row.efficiency_steady),
        "quality": _value(row.quality),
        "quality_difference": _value(row.quality_difference),
        "total_s_all": " ".join(f"{value:.6g}" for value in row.total_s_all),
    }


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
