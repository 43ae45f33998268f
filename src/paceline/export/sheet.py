"""What is said of a run besides its points: what was decided at first, and how it came out. Pure."""

import json
from collections.abc import Iterator, Mapping

from paceline.export.port import Parameter
from paceline.plan.codec import Json, plan_hash, to_json
from paceline.plan.plan import Plan


def parameters_of(plan: Plan) -> dict[str, Parameter]:
    """The plan by dotted names, without what is not set: `strategy.sync_every`, `task_options.hidden`."""
    return {**dict(_flat("", to_json(plan), skip=("exports",))), "plan_hash": plan_hash(plan)}


def final_values(result: Mapping[str, Json]) -> dict[str, float]:
    """The numbers of result.json, under the names that they have there."""
    kept = {name: result[name] for name in _FINAL if name in result}
    staleness = result.get("staleness")
    if isinstance(staleness, dict):
        kept["staleness"] = {name: staleness[name] for name in ("mean", "max", "max_gap")}
    return {
        f"final/{name.removeprefix('metrics.')}": float(value)
        for name, value in _flat("", kept)
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


_FINAL = (
    "metrics",
    "loss",
    "steps",
    "gradients",
    "samples",
    "samples_per_s",
    "wall_s",
    "steps_s",
    "training_s",
    "phases_s",
    "bytes",
)


def _flat(prefix: str, value: Json, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, Parameter]]:
    match value:
        case None:
            return
        case dict():
            for name, inner in value.items():
                if name not in skip:
                    yield from _flat(f"{prefix}.{name}" if prefix else name, inner)
        case list():
            if value:
                yield prefix, json.dumps(value)
        case _:
            yield prefix, value
