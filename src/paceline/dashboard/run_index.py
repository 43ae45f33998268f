"""Run index: the runs that can be shown, which are the folders with an event log below one folder.

Only regular files inside of a run's folder are served. A symbolic link in it is not followed,
whichever file it leads to, and a pipe or device in it is not opened.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import ExitCode, PacelineError
from paceline.plan.codec import Json

LOG = "events.jsonl"
MAX_DEPTH = 3  # folders below the one that was named


class NoRunError(PacelineError):
    """There is no such run."""

    exit_code = ExitCode.TRAINING_FAILED
    code = "E902"


@dataclass(frozen=True, slots=True)
class RunIndex:
    root: Path
    named: str | None  # the run that was given; None: a folder of runs was

    @classmethod
    def at(cls, place: Path, *, is_run: bool = False) -> "RunIndex":
        """`is_run`: the folder will hold a run, though it is still empty."""
        if is_run or (place / LOG).exists() or (place / "plan.json").exists():
            return cls(place.resolve().parent, place.resolve().name)
        if not place.is_dir():
            raise NoRunError(f"there is no folder {place}", "pass a run's folder, or a folder of runs")
        return cls(place.resolve(), None)

    def names(self) -> list[str]:
        """Newest first."""
        logs = sorted(_logs(self.root, MAX_DEPTH), key=_changed_s, reverse=True)
        return [str(path.parent.relative_to(self.root)) for path in logs]

    def folder(self, name: str) -> Path:
        """The folder of a run that `names` would list; a name never leads to another folder.

        Checked without listing all runs, which is slow in a large folder: every request calls this.
        """
        parts = name.split("/")
        is_plain = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
        if not is_plain or len(parts) > MAX_DEPTH or not _is_own(self.root, f"{name}/{LOG}"):
            raise NoRunError(f"there is no run {name!r} here", "see /api/v1/runs")
        return self.root / name

    def default(self) -> str | None:
        """The run that was given, else the newest; None: there is none yet."""
        return self.named or next(iter(self.names()), None)

    def rows(self) -> list[Json]:
        return [self._row(name) for name in self.names()]

    def _row(self, name: str) -> dict[str, Json]:
        folder = self.root / name
        row: dict[str, Json] = {"run": name, "changed_unix_s": _changed_s(folder / LOG)}
        plan = read_run_json(folder, "plan.json")
        result = read_run_json(folder, "result.json")
        for key in ("task", "mode", "num_workers", "steps", "device"):
            row[key] = plan.get(key)
        row["is_over"] = bool(result)
        for key in ("wall_s", "samples_per_s", "loss", "metrics"):
            row[key] = result.get(key)
        return row


def _logs(folder: Path, depth: int) -> Iterator[Path]:
    """Not by glob, which fails when a folder is removed meanwhile: running runs create and remove some."""
    try:
        with os.scandir(folder) as entries:
            inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in inner:
        if _is_own(path, LOG):
            yield path / LOG
        if depth > 1:
            yield from _logs(path, depth - 1)


def read_run_json(folder: Path, name: str) -> dict[str, Json]:
    """A JSON file of the folder; empty if it is missing or incomplete."""
    try:
        value = json.loads(tail_of(folder, name), parse_constant=lambda _: None)  # no NaN on the wire
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def tail_of(folder: Path, name: str, max_bytes: int | None = None) -> bytes:
    """The end of a file inside of the folder, or all of it; empty where `name` leads to anything else."""
    try:
        fd = open_regular_file(folder, name)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        if max_bytes is not None:
            file.seek(max(0, os.fstat(fd).st_size - max_bytes))
        return file.read()


def open_regular_file(folder: Path, name: str) -> int:
    """A descriptor of a regular file; OSError where a part of `name` is a link, or the file is none."""
    *parents, last = name.split("/")
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for parent in parents:
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
            os.close(within)
            within = inner
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    finally:
        os.close(within)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(folder / name))
    return fd


def _is_own(folder: Path, name: str) -> bool:
    try:
        os.close(open_regular_file(folder, name))
    except OSError:
        return False
    return True


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0
