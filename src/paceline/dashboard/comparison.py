"""Comparison of runs on the dashboard: speedups with intervals, differing settings, loss curves."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.comparison.assess import describe_speed, slightly_above
from paceline.comparison.schema import Estimate
from paceline.comparison.statistics import Amdahl, Interval, fit_amdahl, mean_interval, quotient_interval
from paceline.dashboard.run_index import RunIndex, read_run_json
from paceline.events.performance import LossPoint, first_below
from paceline.plan.codec import Json

# Runs of the same plan, except for the seed, are repeats of each other. Two plans are compared in rounds: the
# first run with a seed against the other plan's first run with that seed, and so on. An interval and a
# verdict need three rounds. The statistics are those of the report.

MIN_ROUNDS = 3  # for an interval


@dataclass(frozen=True, slots=True)
class Repeat:
    seed: int
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A chosen run and its repeats, oldest first; the run is one of them once it is finished."""

    run: str
    mode: str
    workers: int
    plan: str  # serialized without name and seed: equal for repeats
    samples_per_s: float | None  # of this run alone
    repeats: tuple[Repeat, ...] = ()

    @property
    def rates(self) -> list[float]:
        if self.repeats:
            return [repeat.samples_per_s for repeat in self.repeats]
        return [] if self.samples_per_s is None else [self.samples_per_s]


def baseline(groups: Sequence[Group]) -> Group | None:
    """The group with the fewest workers; of several the first one chosen."""
    known = [group for group in groups if group.rates and group.workers > 0]
    return min(known, key=lambda group: group.workers, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one group, and relative to the baseline."""

    repeats: int
    throughput: Estimate | None = None
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    in_words: str = "not measured"

    def to_dict(self) -> dict[str, Json]:
        return {
            "repeats": self.repeats,
            "throughput": _to_dict(self.throughput),
            "speedup": _to_dict(self.speedup),
            "efficiency": _to_dict(self.efficiency),
            "in_words": self.in_words,
        }


def speeds(groups: Sequence[Group]) -> dict[str, Speed]:
    base = baseline(groups)
    return {group.run: _speed(group, base) for group in groups}


def _speed(group: Group, base: Group | None) -> Speed:
    rates = group.rates
    if not rates or base is None:
        return Speed(repeats=len(group.repeats))
    ratio, interval, text = _against(group, base)
    share = base.workers / group.workers if group.workers else 1.0
    return Speed(
        repeats=len(group.repeats),
        throughput=_estimate(
            statistics.fmean(rates), mean_interval(rates) if len(rates) >= MIN_ROUNDS else None
        ),
        speedup=_estimate(ratio, interval),
        efficiency=_estimate(ratio, interval, share),
        in_words=text,
    )


def _against(group: Group, base: Group) -> tuple[float, Interval | None, str]:
    """(speedup, its interval, description)."""
    if group.plan == base.plan:
        return 1.0, None, "the baseline" if group.run == base.run else "the same plan as the baseline"
    own, other = rounds(group.repeats, base.repeats)
    if len(own) < MIN_ROUNDS:
        text = f"unknown: {len(own)} rounds with equal seeds, {MIN_ROUNDS} are required"
        return statistics.median(group.rates) / statistics.median(base.rates), None, text
    ratio = statistics.median(own) / statistics.median(other)
    interval = quotient_interval(own, other)
    return ratio, interval, describe_speed(ratio, interval)


def rounds(own: Sequence[Repeat], base: Sequence[Repeat]) -> tuple[list[float], list[float]]:
    """Pairs with the same seed, in the order in which they ran."""
    unmatched = list(base)
    pairs = []
    for repeat in own:
        other = next((candidate for candidate in unmatched if candidate.seed == repeat.seed), None)
        if other is not None:
            unmatched.remove(other)
            pairs.append((repeat.samples_per_s, other.samples_per_s))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def sentences(groups: Sequence[Group], speeds: Mapping[str, Speed]) -> list[str]:
    """A sentence about each run but the baseline."""
    base = baseline(groups)
    texts = []
    for group in groups:
        speedup = speeds[group.run].speedup
        if base is None or group.plan == base.plan or speedup is None:
            continue
        text = f"{group.run} has {speedup.value:.2f} times the throughput of {base.run}"
        if speedup.low is not None and speedup.high is not None:
            text += f" (95 % interval: {speedup.low:.2f} to {speedup.high:.2f})"
        texts.append(f"{text}: {speeds[group.run].in_words}.")
    return texts


@dataclass(frozen=True, slots=True)
class Fit:
    mode: str
    law: Amdahl
    most: int  # workers

    def to_dict(self) -> dict[str, Json]:
        curve: list[Json] = [[workers, self.law.speedup(workers)] for workers in range(1, self.most + 1)]
        return {"mode": self.mode, "serial": self.law.serial, "limit": self.law.limit, "curve": curve}


def scaling(groups: Sequence[Group], speeds: Mapping[str, Speed]) -> list[Fit]:
    """Amdahl's law by mode, where one worker and two other numbers of workers were chosen."""
    base = baseline(groups)
    if base is None or base.workers != 1:
        return []
    fits = []
    for mode in dict.fromkeys(group.mode for group in groups if group.workers > 1):
        points = [
            (group.workers, speedup.value)
            for group in groups
            if group.mode == mode and (speedup := speeds[group.run].speedup) is not None
        ]
        if (law := fit_amdahl(points)) is not None:
            fits.append(Fit(mode, law, max(workers for workers, _ in points)))
    return fits


def _estimate(value: float, interval: Interval | None, times: float = 1.0) -> Estimate:
    if interval is None:
        return Estimate(value=value * times)
    return Estimate(value=value * times, low=interval.low * times, high=interval.high * times)


def _to_dict(estimate: Estimate | None) -> Json:
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}


MAX_RUNS = 6
_LEFT_OUT = ("run", "schema", "hash")


def compared(rows: list[dict[str, Json]], runs: RunIndex) -> dict[str, Json]:
    """Rows of row_of with their comparison to each other and to their repeats in this folder."""
    plans = [plan for row in rows if isinstance(plan := row.pop("plan"), dict)]
    groups = _groups(rows, plans, _repeats(runs))
    speed_by_run = speeds(groups)
    target = _target(rows)
    for row in rows:
        row |= speed_by_run[str(row["run"])].to_dict()
        row["target_s"] = None if target is None else first_below(_points(row), target)
    base = baseline(groups)
    return {
        "runs": list(rows),
        "differs": differing(plans),
        "base": None if base is None else base.run,
        "target_loss": target,
        "scaling": [fit.to_dict() for fit in scaling(groups, speed_by_run)],
        "words": list(sentences(groups, speed_by_run)),
    }


def _groups(
    rows: Sequence[Mapping[str, Json]],
    plans: Sequence[Mapping[str, Json]],
    repeats: Mapping[str, list[Repeat]],
) -> list[Group]:
    groups = []
    for row, plan in zip(rows, plans, strict=True):
        rate = row["samples_per_s"]
        workers = row["workers"]
        text = plan_text(plan)
        group = Group(
            run=str(row["run"]),
            mode=str(row["mode"]),
            workers=workers if isinstance(workers, int) else 0,
            plan=text,
            samples_per_s=rate if isinstance(rate, float | int) and rate > 0 else None,
            repeats=tuple(repeats.get(text, ())),
        )
        groups.append(group)
    return groups


def plan_text(plan: Mapping[str, Json]) -> str:
    """Equal for repeats: everything but the run's name and its seed."""
    kept = {name: value for name, value in plan.items() if name not in (*_LEFT_OUT, "seed")}
    return json.dumps(kept, sort_keys=True)


def _repeats(runs: RunIndex) -> dict[str, list[Repeat]]:
    """All finished runs of this folder, by plan, oldest first."""
    by_plan: dict[str, list[Repeat]] = {}
    for name in reversed(runs.names()):
        plan, result = (read_run_json(runs.root / name, file) for file in ("plan.json", "result.json"))
        rate = result.get("samples_per_s")
        seed = plan.get("seed")
        if isinstance(rate, float | int) and rate > 0:
            repeat = Repeat(seed if isinstance(seed, int) else 0, float(rate))
            by_plan.setdefault(plan_text(dict(flat(plan))), []).append(repeat)
    return by_plan


def _target(rows: Sequence[Mapping[str, Json]]) -> float | None:
    """The lowest loss that every run reached; None: a run has no loss."""
    lowest = [min((point.loss for point in _points(row)), default=math.inf) for row in rows]
    return slightly_above(max(lowest)) if lowest and math.isfinite(max(lowest)) else None


def _points(row: Mapping[str, Json]) -> list[LossPoint]:
    """Points of the loss curve; time counts from the first one."""
    curve = row["curve"]
    batch = row["batch"]
    numbers = [
        point
        for point in (curve if isinstance(curve, list) else [])
        if isinstance(point, list) and all(isinstance(value, float | int) for value in point)
    ]
    samples = batch if isinstance(batch, int) else 0
    return [
        LossPoint(
            float(str(t)) - float(str(numbers[0][1])), int(float(str(step))) * samples, float(str(loss))
        )
        for step, t, loss in numbers
    ]


def row_of(name: str, folder: Path, view: Mapping[str, Json]) -> dict[str, Json]:
    result = read_run_json(folder, "result.json")
    phases = result.get("phases_s")
    shares = _shares(phases) if isinstance(phases, dict) else _shares_so_far(view)
    progress, throughput, loss = (_part(view, name) for name in ("progress", "throughput", "loss"))
    generations = view.get("generations")
    recoveries = (
        [g for g in generations if isinstance(g, dict) and g.get("recovery")]
        if isinstance(generations, list)
        else []
    )
    staleness = result.get("staleness")
    workers = _part(view, "run").get("workers")
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
        "metrics": result.get("metrics"),  # of the finished model
        "evaluations": loss.get("evaluations") or [],
        "staleness_mean": staleness.get("mean") if isinstance(staleness, dict) else None,
        "recoveries": len(recoveries),
        "recovery_s": _recovering_s(recoveries),
        "phases": shares,
        "curve": loss.get("curve") or [],
        "plan": dict(flat(read_run_json(folder, "plan.json"))),
    }


def differing(plans: Sequence[Mapping[str, Json]]) -> list[Json]:
    """Only the settings in which the runs differ: [name, value of each]."""
    names = sorted({name for plan in plans for name in plan})
    rows: list[Json] = []
    for name in names:
        values = [plan.get(name) for plan in plans]
        if name.partition(".")[0] not in _LEFT_OUT and any(value != values[0] for value in values):
            rows.append([name, list(values)])
    return rows


def flat(value: Mapping[str, Json], prefix: str = "") -> list[tuple[str, Json]]:
    items: list[tuple[str, Json]] = []
    for name, item in value.items():
        if isinstance(item, dict):
            items += flat(item, f"{prefix}{name}.")
        else:
            items.append((f"{prefix}{name}", item))
    return items


def _shares(phases: Mapping[str, Json]) -> dict[str, Json]:
    seconds = {name: float(value) for name, value in phases.items() if isinstance(value, int | float)}
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total > 0 else {}


def _first(*values: Json) -> Json:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


def _shares_so_far(view: Mapping[str, Json]) -> dict[str, Json]:
    """For a run without a result: the mean over its workers in the last minute."""
    workers = view.get("workers")
    phases_by_worker = (
        [dict(_part(worker, "phases")) for worker in workers if isinstance(worker, dict)]
        if isinstance(workers, list)
        else []
    )
    names = {name for phases in phases_by_worker for name in phases}
    sums: dict[str, Json] = {
        name: sum(float(str(phases.get(name) or 0.0)) for phases in phases_by_worker)
        for name in sorted(names)
    }
    return _shares(sums)


def _recovering_s(generations: Sequence[Mapping[str, Json]]) -> float:
    """The whole time in which the run recovered."""
    took = [_part(generation, "recovery").get("total_s") for generation in generations]
    return sum(float(value) for value in took if isinstance(value, float | int))


def _product(left: Json, right: Json) -> float | None:
    is_known = isinstance(left, float | int) and isinstance(right, float | int)
    return float(str(left)) * float(str(right)) if is_known else None


def _part(view: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    value = view.get(name)
    return value if isinstance(value, dict) else {}
