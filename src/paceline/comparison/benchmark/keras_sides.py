"""Sides of a Keras benchmark: which of them run, and the results of an earlier one that are used again.

Each turn keeps the settings that it ran with in its folder. A side of an earlier benchmark is compared with
the other side only if all settings are equal; otherwise the two would differ in more than Ray Train.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from paceline.comparison.benchmark.runner import BASELINE, MEASURED, turn_folder
from paceline.comparison.benchmark.schema import Measured, read_measured
from paceline.core.errors import ConfigError, DamagedRecordError, Problem
from paceline.plan.codec import Json

RAY = "ray"  # of its files
SETTINGS = "settings.json"


class Side(StrEnum):
    """A side as `--only` names it."""

    BASELINE = "baseline"
    DISTRIBUTED = "distributed"

    @property
    def contender(self) -> str:
        return BASELINE if self is Side.BASELINE else RAY

    @property
    def other(self) -> "Side":
        return Side.DISTRIBUTED if self is Side.BASELINE else Side.BASELINE


def write_settings(settings: Mapping[str, Json], folder: Path) -> None:
    (folder / SETTINGS).write_text(json.dumps(dict(settings), indent=2) + "\n", encoding="utf-8")


def earlier_runs(out: Path, side: Side, settings: Mapping[str, Json], *, repeats: int) -> list[Measured]:
    """Finished runs of this side in `out`, empty if it never finished; ConfigError if its settings differ."""
    folders = [turn_folder(out, side.contender, number) for number in range(repeats)]
    if not all(_is_finished(folder) for folder in folders):
        if list(out.glob(f"{side.contender}_results*.json")):
            raise _unusable(out, side, f"has no record of the settings of {repeats} finished runs")
        return []
    for folder in folders:
        if (difference := _difference(_read(folder / SETTINGS), settings)) is not None:
            raise _unusable(out, side, difference)
    if turn_folder(out, side.contender, repeats).exists():
        raise _unusable(out, side, f"has more than {repeats} runs")
    return [read_measured(folder / MEASURED) for folder in folders]


def _is_finished(folder: Path) -> bool:
    """An unfinished turn has an empty object; one of an earlier version has no settings."""
    record = folder / MEASURED
    return record.exists() and record.read_text("utf-8").strip() != "{}" and (folder / SETTINGS).exists()


def _read(path: Path) -> dict[str, Json]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedRecordError(f"cannot read {path}: {error}", "run this side again") from error
    return value if isinstance(value, dict) else {}


def _difference(earlier: Mapping[str, Json], settings: Mapping[str, Json]) -> str | None:
    different = [name for name in settings if earlier.get(name) != settings[name]]
    if not different:
        return None
    listed = ", ".join(
        f"{name} {_shown(earlier.get(name))}, not {_shown(settings[name])}" for name in different
    )
    return f"was run with {listed}"


def _shown(value: Json) -> str:
    return json.dumps(value)


def _unusable(out: Path, side: Side, reason: str) -> ConfigError:
    message = f"the {side.value} side in {out} {reason}, so the sides cannot be compared"
    hint = "use the settings of that side, run both without --only, or name another folder with --out"
    return ConfigError([Problem(message, hint, "--only")])
