"""Benchmark runner: every contender once per round, in turns, and the files of the result.

The folder: `runs/` with a folder for each turn, `baseline_results.json`, `NAME_results_Nworkers.json`,
`comparison.json` and `.csv`, `plots/`, `report.html`. Half a benchmark leaves its finished turns, and no
comparison. See docs/guides/benchmark.md.
"""

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.comparison.benchmark.assess import compare
from paceline.comparison.benchmark.page import benchmark_page, figures_of
from paceline.comparison.benchmark.schema import Benchmark, HistoryPoint, Measured, Row, dumps, write_measured
from paceline.comparison.layout import order_of
from paceline.comparison.measurement import inspect_machine
from paceline.comparison.report.comparison import csv_with_heads
from paceline.comparison.report.svg import write_plots
from paceline.comparison.schema import Estimate, finite
from paceline.core.clock import monotonic_s, unix_now_s
from paceline.core.disk import exclusive
from paceline.core.errors import ConfigError, Problem
from paceline.plan.codec import Json

BASELINE = "baseline"
MEASURED = "measured.json"
_WRITTEN = (
    "comparison.json",
    "comparison.csv",
    "report.html",
    "baseline_results.json",
    "*_results_*workers.json",
    *(f"plots/{name}.svg" for name in ("speedup-*", "efficiency-*", "time", "curve-*")),
)


def write_all(benchmark: Benchmark, folder: Path) -> None:
    (folder / "comparison.json").write_text(dumps(benchmark), encoding="utf-8")
    (folder / "comparison.csv").write_text(csv_of(benchmark), encoding="utf-8")
    write_results(benchmark, folder)
    (folder / "report.html").write_text(benchmark_page(benchmark), encoding="utf-8")
    write_plots(figures_of(benchmark), folder / "plots")


def remove_results(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove what `write_all` has left there before, except results of the contenders in `keep`."""
    for pattern in _WRITTEN:
        for path in folder.glob(pattern):
            if path.name.partition("_results")[0] not in keep:
                path.unlink()


def turn_folder(out: Path, name: str, number: int) -> Path:
    """Folder of a contender's run; `number` counts rounds from 0."""
    return out / "runs" / f"{name}-{number + 1}"


def write_results(benchmark: Benchmark, folder: Path) -> None:
    """The result file of each contender; for one contender alone there is nothing else."""
    for name, result in results_of(benchmark).items():
        (folder / name).write_text(json.dumps(finite(result), indent=2) + "\n", encoding="utf-8")


def results_of(benchmark: Benchmark) -> dict[str, dict[str, Json]]:
    """Results by file name: `baseline_results.json`, and `ray_results_2workers.json` for each other."""
    results = {}
    for name, row in benchmark.rows.items():
        is_baseline = name == BASELINE
        file = "baseline_results.json" if is_baseline else f"{name}_results_{row.workers}workers.json"
        results[file] = _result(benchmark, row, is_baseline=is_baseline)
    return results


def _result(benchmark: Benchmark, row: Row, *, is_baseline: bool) -> dict[str, Json]:
    result: dict[str, Json] = {
        "training_type": _training_type(row, is_baseline=is_baseline),
        "name": row.name,
        "framework": row.framework,
        "task": benchmark.task,
        "num_workers": row.workers,
        "training_time_seconds": row.total_s,
        "training_time_seconds_all": list(row.total_s_all),
        "seconds_to_first_step": row.first_step_s,
        "steady_samples_per_second": row.steady_samples_per_s,
        "steady_without": row.warm_up,
        "epochs_completed": None if row.epochs is None else _whole(row.epochs),
        "steps_completed": row.steps,
        "samples_trained": row.samples,
        "batch_size": row.global_batch,
        "batch_size_per_worker": row.worker_batch,
        **row.metrics,
        "history": [_point(point) for point in row.history],
        "facts": {**row.facts},
        "repeats": benchmark.repeats,
        "cpus": benchmark.machine.processors,
        "paceline": benchmark.paceline,
    }
    result.setdefault("test_accuracy", None)
    if row.cluster is not None:
        result |= {
            "ray_cluster_nodes": row.cluster.nodes,
            "ray_cluster_cpus": _whole(row.cluster.cpus),
            "ray_cluster_gpus": _whole(row.cluster.gpus),
            "ray_cluster_memory_bytes": row.cluster.memory_bytes,
        }
    if row.name != benchmark.baseline:
        result |= {
            "speedup": row.speedup_total.value,
            "efficiency": row.efficiency_total.value,
            "speedup_steady": _value(row.speedup_steady),
            "efficiency_steady": _value(row.efficiency_steady),
        }
    return result


def _training_type(row: Row, *, is_baseline: bool) -> str:
    if is_baseline:
        return "baseline"
    return "distributed" if row.cluster is None else "ray_distributed"


def _whole(value: float) -> int | float:
    """A count as an integer; a fraction of an epoch or of a CPU stays one."""
    return int(value) if value.is_integer() else value


def _point(point: HistoryPoint) -> dict[str, Json]:
    return {"epoch": _whole(point.epoch), "seconds": point.seconds, "metrics": {**point.metrics}}


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


LogFunction = Callable[[str], None]  # one line for a person


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A contender. `run` trains once, in this folder with this seed, and returns the measurements."""

    name: str  # of its files; the baseline's is BASELINE
    title: str
    run: Callable[[Path, int, LogFunction], Measured]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingRun:
    """The event before each turn."""

    title: str
    number: int  # from 1, of all turns
    count: int
    left_s: float | None  # a guess; None: nothing is known yet


def benchmark(
    contenders: Sequence[Contender],
    out: Path,
    *,
    task: str,
    subject: str,
    repeats: int,
    seed: int,
    notify: Callable[[UpcomingRun], None],
    note: LogFunction,
    earlier: Mapping[str, Sequence[Measured]] | None = None,
) -> Benchmark:
    """Run every contestant `repeats` times, in turns, write all files into `out`, and return the result.

    `earlier` has the runs of contenders that are in `out` and are not run again. If the baseline or the
    subject has no runs, there is nothing to compare: only the results of the other are written, and returned
    as a benchmark of one row.
    """
    kept = earlier or {}
    by_name = {contender.name: contender for contender in contenders}
    order = order_of(list(by_name), repeats, seed)
    folders = {(name, n): turn_folder(out, name, n) for n, names in enumerate(order) for name in names}
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        for folder in folders.values():
            _may_be_replaced(folder)
        # Else half a benchmark would leave the comparison of an earlier one.
        remove_results(out, keep=kept)
        machine = inspect_machine()
        began_s = monotonic_s()
        done = 0
        runs = {name: [*measured] for name, measured in kept.items()} | {name: [] for name in by_name}
        for number, names in enumerate(order):
            for name in names:
                left_s = (monotonic_s() - began_s) / done * (len(folders) - done) if done else None
                done += 1
                notify(UpcomingRun(title=by_name[name].title, number=done, count=len(folders), left_s=left_s))
                measured = _turn(by_name[name], folders[name, number], seed + number, note)
                runs[name].append(measured)
        if len(runs) == 1:
            (alone,) = runs
            side = compare(runs, baseline=alone, subject=alone, task=task, machine=machine)
            write_results(side, out)
            return side
        found_out = compare(runs, baseline=BASELINE, subject=subject, task=task, machine=machine)
        write_all(found_out, out)
        return found_out


def _turn(contender: Contender, folder: Path, seed: int, note: LogFunction) -> Measured:
    if folder.exists():
        shutil.rmtree(folder)  # `_may_be_replaced` has checked that Paceline made it
    folder.mkdir(parents=True)
    (folder / MEASURED).write_text("{}\n")  # marks an incomplete run as made by Paceline
    started_s = unix_now_s()
    measured = replace(
        contender.run(folder, seed, note),
        name=contender.name,
        title=contender.title,
        started_unix_s=started_s,
    )
    write_measured(measured, folder / MEASURED)
    return measured


def _may_be_replaced(folder: Path) -> None:
    if folder.exists() and not (folder / MEASURED).is_file():
        message = f"{folder} exists, but is not a run of a benchmark, so it is not replaced"
        raise ConfigError([Problem(message, "name another folder with --out", "--out")])
