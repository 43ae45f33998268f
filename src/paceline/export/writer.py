"""What must a writer do? Take a run's sheet, then its points as they come, then how it ended."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

Parameter = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers that belong to one step of the run."""

    step: int
    unix_s: float
    values: Mapping[str, float]  # by name, such as `train/loss`


@dataclass(frozen=True, slots=True)
class Rewind:
    """The run went back: what was said of this step and of later ones no longer counts."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is known of a run before its first step."""

    name: str
    folder: Path  # the run's own
    parameters: Mapping[str, Parameter]
    started_unix_s: float
    goes_on: bool  # a run that was exported before, and was resumed


class Outcome(StrEnum):
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class Writer(Protocol):
    """Whatever it raises ends the export, and never the run."""

    @property
    def place(self) -> str:
        """Where the record is, without anything secret, for a person."""
        ...

    def write(self, points: Sequence[Point]) -> None: ...

    def rewind(self, step: int) -> None: ...

    def end(self, outcome: Outcome) -> None:
        """Everything is flushed when this returns."""
        ...


class VendorRunId:
    def __init__(self, run_dir: Path, vendor: str) -> None:
        self._path = run_dir / "export" / f"{vendor}.json"

    def read(self) -> str | None:
        try:
            return str(json.loads(self._path.read_bytes())["run"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None  # without it, or where it is damaged, the vendor gives a new name

    def write(self, run: str) -> None:
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps({"run": run}) + "\n")
