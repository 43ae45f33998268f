"""What do several runs say side by side? Numbers of their results, how they differ, how their losses fell."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.dashboard import speedups
from paceline.dashboard.found_runs import FoundRuns, read_own
from paceline.dashboard.speedups import Group, Repeat
from paceline.events.curve import Point, first_below
from paceline.plan.codec import Json
from paceline.report.assess import a_little_more

MOST_RUNS = 6
_LEFT_OUT = ("run", "schema", "hash")


def compared(rows: list[dict[str, Json]], runs: FoundRuns) -> dict[str, Json]:
    """Rows of row_of, with what they mean beside each other and beside their repeats in this folder."""
    plans = [plan for row in rows if isinstance(plan := row.pop("plan"), dict)]
    groups = _groups(rows, plans, _repeats(runs))
    found = speedups.speeds(groups)
    target = _target(rows)
    for row in rows:
        row |= found[str(row["run"])].told()
        row["target_s"] = None if target is None else first_below(_points(row), target)
    base = speedups.baseline(groups)
    return {
        "runs": list(rows),
        "differs": differing(plans),
        "base": None if base is None else base.run,
        "target_loss": target,
        "scaling": [fit.told() for fit in speedups.scaling(groups, found)],
        "words": list(speedups.sentences(groups, found)),
    }


def _groups(
    rows: Sequence[Mapping[str, Json]],
    plans: Sequence[Mapping[str, Json]],
    repeats: Mapping[str, list[Repeat]],
) -> list[Group]:
    found = []
    for row, plan in zip(rows, plans, strict=True):
        rate, workers, text = row["samples_per_s"], row["workers"], plan_text(plan)
        group = Group(
            run=str(row["run"]),
            mode=str(row["mode"]),
            workers=workers if isinstance(workers, int) else 0,
            plan=text,
            samples_per_s=rate if isinstance(rate, float | int) and rate > 0 else None,
            repeats=tuple(repeats.get(text, ())),
        )
        found.append(group)
    return found


def plan_text(plan: Mapping[str, Json]) -> str:
    """Equal for repeats: everything but the run's name and its seed."""
    kept = {name: value for name, value in plan.items() if name not in (*_LEFT_OUT, "seed")}
    return json.dumps(kept, sort_keys=True)


def _repeats(runs: FoundRuns) -> dict[str, list[Repeat]]:
    """All finished runs of this folder, by plan, oldest first."""
    found: dict[str, list[Repeat]] = {}
    for name in reversed(runs.names()):
        plan, result = (read_own(runs.root / name, file) for file in ("plan.json", "result.json"))
        rate, seed = result.get("samples_per_s"), plan.get("seed")
        if isinstance(rate, float | int) and rate > 0:
            repeat = Repeat(seed if isinstance(seed, int) else 0, float(rate))
            found.setdefault(plan_text(dict(flat(plan))), []).append(repeat)
    return found


def _target(rows: Sequence[Mapping[str, Json]]) -> float | None:
    """The lowest loss that every run came to; None: some run came to none."""
    lowest = [min((point.loss for point in _points(row)), default=math.inf) for row in rows]
    return a_little_more(max(lowest)) if lowest and math.isfinite(max(lowest)) else None


def _points(row: Mapping[str, Json]) -> list[Point]:
    """Of the curve, since its first point."""
    curve, batch = row["curve"], row["batch"]
    numbers = [
        point
        for point in (curve if isinstance(curve, list) else [])
        if isinstance(point, list) and all(isinstance(value, float | int) for value in point)
    ]
    samples = batch if isinstance(batch, int) else 0
    return [
        Point(float(str(t)) - float(str(numbers[0][1])), int(float(str(step))) * samples, float(str(loss)))
        for step, t, loss in numbers
    ]


def row_of(name: str, folder: Path, view: Mapping[str, Json]) -> dict[str, Json]:
    result = read_own(folder, "result.json")
    phases = result.get("phases_s")
    shares = _shares(phases) if isinstance(phases, dict) else _shares_so_far(view)
    progress, throughput, loss = (_part(view, name) for name in ("progress", "throughput", "loss"))
    generations = view.get("generations")
    recoveries = (
        [g for g in generations if isinstance(g, dict) and g.get("recovery")]
        if isinstance(generations, list)
        else []
    )
    staleness, workers = result.get("staleness"), _part(view, "run").get("workers")
    training_s = _first(result.get("training_s"), progress.get("elapsed_s"))
    return {
        "run": name,
        "state": view.get("state"),
        "mode": _part(view, "run").get("mode"),
        "workers": workers,
        "batch": _part(view, "run").get("batch"),
        "step": progress.get("step"),
        "training_s": training_s,
        "cost_worker_s": _product(workers, training_s),
        "samples_per_s": _first(result.get("samples_per_s"), throughput.get("samples_per_s")),
        "loss": _first(result.get("loss"), loss.get("smooth")),
        "best_loss": loss.get("best"),
        "staleness_mean": staleness.get("mean") if isinstance(staleness, dict) else None,
        "recoveries": len(recoveries),
        "recovery_s": _recovering_s(recoveries),
        "phases": shares,
        "curve": loss.get("curve") or [],
        "plan": dict(flat(read_own(folder, "plan.json"))),
    }


def differing(plans: Sequence[Mapping[str, Json]]) -> list[Json]:
    """Only the settings in which the runs differ: [name, value of each]."""
    names = sorted({name for plan in plans for name in plan})
    found: list[Json] = []
    for name in names:
        values = [plan.get(name) for plan in plans]
        if name.partition(".")[0] not in _LEFT_OUT and any(value != values[0] for value in values):
            found.append([name, list(values)])
    return found


def flat(value: Mapping[str, Json], before: str = "") -> list[tuple[str, Json]]:
    found: list[tuple[str, Json]] = []
    for name, item in value.items():
        if isinstance(item, dict):
            found += flat(item, f"{before}{name}.")
        else:
            found.append((f"{before}{name}", item))
    return found


def _shares(phases: Mapping[str, Json]) -> dict[str, Json]:
    seconds = {name: float(value) for name, value in phases.items() if isinstance(value, int | float)}
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total > 0 else {}


def _first(*values: Json) -> Json:
    """That is there: a loss of 0 is one."""
    return next((value for value in values if value is not None), None)


def _shares_so_far(view: Mapping[str, Json]) -> dict[str, Json]:
    """Of a run that has no result yet: the mean of its workers in the last minute."""
    workers = view.get("workers")
    found = (
        [dict(_part(worker, "phases")) for worker in workers if isinstance(worker, dict)]
        if isinstance(workers, list)
        else []
    )
    names = {name for phases in found for name in phases}
    sums: dict[str, Json] = {
        name: sum(float(str(phases.get(name) or 0.0)) for phases in found) for name in sorted(names)
    }
    return _shares(sums)


def _recovering_s(generations: Sequence[Mapping[str, Json]]) -> float:
    """The whole time in which the run recovered."""
    took = [_part(generation, "recovery").get("total_s") for generation in generations]
    return sum(float(value) for value in took if isinstance(value, float | int))


def _product(one: Json, other: Json) -> float | None:
    is_known = isinstance(one, float | int) and isinstance(other, float | int)
    return float(str(one)) * float(str(other)) if is_known else None


def _part(view: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    found = view.get(name)
    return found if isinstance(found, dict) else {}
