"""Measurement of one finished run: its folder read once, result, plan and events."""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from paceline.comparison.schema import Evaluated, Machine, Quality
from paceline.config.environment import probe_machine
from paceline.config.train_config import TrainConfig
from paceline.core.errors import DamagedRecordError, NotFinishedError, NothingRecordedError
from paceline.events.performance import LossPoint, running_loss
from paceline.events.read import History, read_custom, read_history
from paceline.events.schema import PHASES
from paceline.events.summary import Staleness, staleness
from paceline.plan.codec import Json, plan_hash, read
from paceline.plan.plan import Plan

WINDOW = 8  # steps of all workers over which a loss is averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    name: str
    plan: Plan
    seconds: float
    samples: int
    samples_per_s: float
    loss: float | None
    metrics: dict[str, float]
    phases_s: dict[str, float]
    bytes_out: int
    bytes_in: int
    staleness: Staleness | None
    points: list[LossPoint]
    evaluations: tuple[Evaluated, ...]
    data: str
    stopped_by: str  # empty: it was not
    started_unix_s: float
    history: History


def is_finished(folder: Path, plan: Plan) -> bool:
    """Whether this folder holds exactly that run, completed."""
    result = _result(folder)
    return result is not None and result.get("plan") == plan_hash(plan) and not result.get("stopped_early")


def read_run(folder: Path) -> Measured:
    plan = read(folder / "plan.json")
    result = _result(folder)
    if result is None:
        raise NotFinishedError(
            f"{folder} has no result.json, so its run is not finished",
            f"wait for it, or resume it: paceline train --resume {folder}",
        )
    if "training_s" not in result:
        raise NothingRecordedError(
            f"{folder} was recorded with events off, so there is nothing to report", "run it with events full"
        )
    history = read_history(folder / "events.jsonl")
    moved = _object(result.get("bytes"))
    samples = round(_number(result["samples"]) or 0)
    window = max(1, min(WINDOW, samples // plan.global_batch // 4)) * plan.global_batch
    return Measured(
        name=folder.name,
        plan=plan,
        seconds=_number(result["training_s"]) or 0.0,
        samples=samples,
        samples_per_s=_number(result["samples_per_s"]) or 0.0,
        loss=_number(result.get("loss")),
        metrics=_numbers(result.get("metrics")),
        phases_s={name: _numbers(result.get("phases_s")).get(name, 0.0) for name in PHASES},
        bytes_out=round(_number(moved.get("out")) or 0),
        bytes_in=round(_number(moved.get("in")) or 0),
        staleness=staleness(history.server),
        points=running_loss(history, window),
        evaluations=_evaluations(history) or _logged(folder, history, _numbers(result.get("metrics"))),
        data=str(result.get("data") or plan.task_options.get("data") or ""),
        stopped_by=str(result.get("stopped_by") or "a request") if result.get("stopped_early") else "",
        started_unix_s=history.started_unix_s,
        history=history,
    )


def best_named(metrics: Sequence[Mapping[str, float | None]]) -> Quality | None:
    shared = [name for name in metrics[0] if all(name in metric for metric in metrics)] if metrics else []
    for word, is_share in (("accuracy", True), ("loss", False)):
        named = sorted((n for n in shared if word in n), key=lambda n: (not n.startswith("test"), n))
        if named:
            return Quality(name=named[0], is_share=is_share)
    return None


def first_step_ns(history: History) -> int:
    return min((row.start_ns for rows in history.steps.values() for row in rows), default=history.t0_ns)


def _evaluations(history: History) -> tuple[Evaluated, ...]:
    return tuple(
        Evaluated(
            seconds=float(str(event.fields["seconds"])),
            samples=int(str(event.fields["samples"])),
            metrics={**_numbers(json.loads(str(event.fields["metrics"])))},
        )
        for event in history.plain
        if event.kind == "evaluated"
    )


def _logged(folder: Path, history: History, last: Mapping[str, float]) -> tuple[Evaluated, ...]:
    """Numbers of quality that a script's main worker logged (run.log), each by the end of a step."""
    judged = best_named([last])
    if judged is None:
        return ()
    logged: dict[int, float] = {}
    for row in read_custom(folder / "events.jsonl", "worker-0"):
        if row.name == judged.name:
            logged[row.at_ns] = row.value
    begun = sorted((row.start_ns, row.samples) for rows in history.steps.values() for row in rows)
    first_ns = first_step_ns(history)
    return tuple(
        Evaluated(
            seconds=(at_ns - first_ns) / 1e9,
            samples=sum(samples for start_ns, samples in begun if start_ns < at_ns),
            metrics={judged.name: value},
        )
        for at_ns, value in sorted(logged.items())
    )


def _result(folder: Path) -> dict[str, Json] | None:
    path = folder / "result.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DamagedRecordError(
            f"{path} cannot be read: {error}", "it is damaged: remove the run's folder and train again"
        ) from error
    return _object(value)


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(value: Json) -> dict[str, float]:
    numbers = {name: _number(item) for name, item in _object(value).items()}
    return {name: math.nan if number is None else number for name, number in numbers.items()}


def inspect_machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        processors=probe_machine(TrainConfig()).cpu_count,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=metadata.version("torch"),
        load=round(os.getloadavg()[0], 2),
    )


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(named, platform.machine())
