"""What do several runs say side by side? Numbers of their results, how they differ, how their losses fell."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.plan.codec import Json

MOST_RUNS = 6
_LEFT_OUT = ("run", "schema")


def row_of(name: str, folder: Path, view: Mapping[str, Json]) -> dict[str, Json]:
    result = _read(folder / "result.json")
    phases = result.get("phases_s")
    shares = _shares(phases) if isinstance(phases, dict) else {}
    progress, throughput, loss = (_part(view, name) for name in ("progress", "throughput", "loss"))
    generations = view.get("generations")
    recoveries = (
        [g for g in generations if isinstance(g, dict) and g.get("recovery")]
        if isinstance(generations, list)
        else []
    )
    staleness = result.get("staleness")
    return {
        "run": name,
        "state": view.get("state"),
        "mode": _part(view, "run").get("mode"),
        "workers": _part(view, "run").get("workers"),
        "step": progress.get("step"),
        "training_s": _first(result.get("training_s"), progress.get("elapsed_s")),
        "samples_per_s": _first(result.get("samples_per_s"), throughput.get("samples_per_s")),
        "loss": _first(result.get("loss"), loss.get("smooth")),
        "best_loss": loss.get("best"),
        "staleness_mean": staleness.get("mean") if isinstance(staleness, dict) else None,
        "recoveries": len(recoveries),
        "phases": shares,
        "curve": loss.get("curve") or [],
        "plan": dict(flat(_read(folder / "plan.json"))),
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


def _part(view: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    found = view.get(name)
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> dict[str, Json]:
    try:
        said = json.loads(path.read_text(), parse_constant=lambda _: None)  # no NaN on the wire
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
