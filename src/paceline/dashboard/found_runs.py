"""Which runs can be looked at? The folders with an event log below one folder, and nothing else."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ExitCode, PacelineError
from paceline.plan.codec import Json

LOG = "events.jsonl"
DEEPEST = 3  # folders below the one that was named


class NoRunError(PacelineError):
    """There is no such run."""

    exit_code = ExitCode.TRAINING_FAILED
    code = "E902"


@dataclass(frozen=True, slots=True)
class FoundRuns:
    root: Path
    named: str | None  # the run that was asked for; None: a folder of runs was

    @classmethod
    def at(cls, place: Path, *, is_run: bool = False) -> "FoundRuns":
        """`is_run`: it will be one, though there is nothing in it yet."""
        if is_run or (place / LOG).exists() or (place / "plan.json").exists():
            return cls(place.resolve().parent, place.resolve().name)
        if not place.is_dir():
            raise NoRunError(f"there is no folder {place}", "name a run's folder, or a folder of runs")
        return cls(place.resolve(), None)

    def names(self) -> list[str]:
        """Newest first."""
        found = sorted(_logs(self.root, DEEPEST), key=_changed_s, reverse=True)
        return [str(path.parent.relative_to(self.root)) for path in found]

    def folder(self, name: str) -> Path:
        """Only of a run that would be listed: a name is never a way to another folder.

        Not by listing all of them: that takes long in a large folder, and is asked with every request.
        """
        parts = name.split("/")
        is_plain = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
        if not is_plain or len(parts) > DEEPEST or not (self.root / name / LOG).exists():
            raise NoRunError(f"there is no run {name!r} here", "look at /api/v1/runs")
        return self.root / name

    def usual(self) -> str | None:
        """The one that was named, else the newest; None: there is none yet."""
        return self.named or next(iter(self.names()), None)

    def rows(self) -> list[Json]:
        return [self._row(name) for name in self.names()]

    def _row(self, name: str) -> dict[str, Json]:
        folder = self.root / name
        row: dict[str, Json] = {"run": name, "changed_unix_s": _changed_s(folder / LOG)}
        plan, result = _read(folder / "plan.json"), _read(folder / "result.json")
        for key in ("task", "mode", "num_workers", "steps", "device"):
            row[key] = plan.get(key)
        row["is_over"] = bool(result)
        for key in ("wall_s", "samples_per_s", "loss"):
            row[key] = result.get(key)
        return row


def _logs(folder: Path, deep: int) -> Iterator[Path]:
    """Not by glob, which fails when a folder goes while one looks: runs at work make and remove some."""
    try:
        with os.scandir(folder) as entries:
            inner = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return
    for path in inner:
        if (path / LOG).exists():
            yield path / LOG
        if deep > 1:
            yield from _logs(path, deep - 1)


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it was just removed
        return 0.0


def _read(path: Path) -> dict[str, Json]:
    """Empty as long as it is not there, or not whole."""
    try:
        said = json.loads(path.read_text(), parse_constant=lambda _: None)  # no NaN on the wire
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
