"""Following a log that is still being written: each read takes only what is new.

`LogFollower` keeps all plain events, and the newest steps of each worker: polling a long run a
hundred times a second must not read it a hundred times a second. Lines that cannot be read are
skipped and counted, as in events/read.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.errors import PacelineError
from paceline.events.read import UNREADABLE, History, Torn, decode_lines, take_line
from paceline.events.segments import chunks

PART_BYTES = 4_000_000


class NewLines:
    """Each whole line of a growing log once, in the order in which they were written."""

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        """`most_bytes`: approximate limit per read, for a caller that reads until the result is empty."""
        self._path = path
        self._max_bytes = most_bytes
        self.offset = 0  # offset in the log after the last line read
        self.torn = Torn()  # lines that cannot be read; a user of the lines may add to them
        self.number = 0  # number of the last line read, from 1

    def resume(self, offset: int, number: int, torn: Torn) -> None:
        """Continue after the line with this number, which ends at this offset."""
        self.offset = offset
        self.number = number
        self.torn = torn

    def read(self) -> list[str]:
        """All new lines, or about `most_bytes` of them; none as long as there is no file."""
        if self._max_bytes is not None:
            return next(self.parts(), [])
        return [line for part in self.parts() for line in part]

    def parts(self, end: int | None = None) -> Iterator[list[str]]:
        """The same, a few megabytes at a time and up to this offset: a long log need not fit into memory."""
        rest = b""
        try:
            for data in chunks(self._path, self.offset, end=end, size=self._max_bytes or PART_BYTES):
                # After the last newline: a line that is longer, or that is still being written.
                whole, newline, rest = (rest + data).rpartition(b"\n")
                if newline:
                    self.offset += len(whole) + 1
                    # A caller that reads until the result is empty would take an empty part for the end.
                    if kept := self._decode(whole.split(b"\n")):
                        yield kept
        except FileNotFoundError:
            return
        except ValueError as error:
            raise PacelineError(
                f"{self._path} is shorter than it was: it was replaced while it was being read",
                "run the command again",
            ) from error

    def _decode(self, raw: list[bytes]) -> list[str]:
        lines = []
        for line in raw:
            self.number += 1
            if not line:
                continue
            whole, is_torn = decode_lines(line)
            lines += whole
            if is_torn:
                self.torn.add(self.number)
        return lines


class LogFollower:
    def __init__(self, path: Path, *, rows: int) -> None:
        self._lines = NewLines(path)
        self._rows = rows
        self._history = History()
        self._has_header = False

    def read(self) -> History:
        """The same object each time, brought up to date; empty as long as there is no log."""
        for line in self._lines.read():
            try:
                take_line(self._history, line, is_header=not self._has_header)
            except UNREADABLE:
                if not self._has_header:
                    raise
                self._history.torn.count += 1
            self._has_header = True
        for rows in self._history.steps.values():
            del rows[: -self._rows]
        return self._history


class ColumnReader:
    """One line of a frequent kind."""

    def __init__(self, event: Mapping[str, object]) -> None:
        self.count = int(str(event["rows"]))
        columns = event["columns"]
        assert isinstance(columns, dict), "a line of rows has columns"
        self._columns = columns

    def of(self, name: str, default: object = None) -> Sequence[Any]:  # Any: what JSON held
        value = self._columns.get(name, default)
        return value if isinstance(value, list) else [value] * self.count

    def ints(self, name: str) -> list[int]:
        # No conversion: this runs for every number of every step.
        return [v or 0 for v in self.of(name, 0)]

    def floats(self, name: str) -> list[float]:
        return [as_float(v) for v in self.of(name, 0.0)]

    def rows(self, *names: str) -> list[tuple[object, ...]]:
        return list(zip(*(self.of(name) for name in names), strict=True))


def as_float(value: object) -> float:
    """A number of the log; Python's JSON also has NaN and Infinity."""
    if isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, int | float) else float("nan")


def optional_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def optional_int(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
