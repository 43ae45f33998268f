"""The writer port of exporters, and the data that writers receive: run info, points, outcome."""

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
    """The run went back: points of this step and later ones no longer count."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Facts about a run that are known before its first step."""

    name: str
    folder: Path  # the run's own
    parameters: Mapping[str, Parameter]
    started_unix_s: float
    goes_on: bool  # a resumed run that was exported before


class Outcome(StrEnum):
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class Writer(Protocol):
    """An error of a writer ends the export, never the run."""

    @property
    def place(self) -> str:
        """Where the exported run is, for display, without secrets."""
        ...

    def write(self, points: Sequence[Point]) -> None: ...

    def rewind(self, step: int) -> None: ...

    def end(self, outcome: Outcome) -> None:
        """Everything is flushed when this returns."""
        ...


class VendorRunId:
    """The file with the vendor's id of an exported run, so that a resumed run continues it."""

    def __init__(self, run_dir: Path, vendor: str) -> None:
        self._path = run_dir / "export" / f"{vendor}.json"

    def read(self) -> str | None:
        try:
            return str(json.loads(self._path.read_bytes())["run"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None  # missing or damaged: the vendor creates a new run

    def write(self, run: str) -> None:
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps({"run": run}) + "\n")
