"""Which closes does a CSV file hold? Dates that increase, numbers above zero, no silent holes.

Rows without a close (holidays, in the files of some sources) are left out and
counted. Everything else that is not plain is refused with its line, because a
wrong close is a wrong label.
"""

import csv
import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.config.nearest import did_you_mean
from paceline.config.values import shown
from paceline.errors import ConfigError, Problem, TaskDataError

# In lower case, best first; what public sources of daily closes call them.
DATE_NAMES = ("date", "observation_date", "datetime", "day", "timestamp", "time")
CLOSE_NAMES = ("close", "close/last", "adj close", "adj_close", "adjusted close", "price", "sp500", "value")
_NO_CLOSE = frozenset({"", ".", "nan", "null", "na", "n/a"})
_SHOWN_GAPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns that the user named; None: found by their usual names."""

    date: str | None = None
    close: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closes:
    dates: tuple[date, ...]
    values: NDArray[np.float64]
    rows_without_close: int


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    day: date
    close: float | None


def read_closes(path: Path, columns: Columns, *, max_gap_days: int) -> Closes:
    """Raises ConfigError, with the line, for whatever is in the file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(csv.reader(file), path, columns))
    except OSError as error:
        hint = "name a CSV file of daily closes: paceline data prepare sp500 --csv closes.csv"
        raise _refused(f"cannot read {path}: {error.strerror}", hint, "--csv") from error
    except UnicodeDecodeError as error:
        hint = f"convert it first: iconv -t UTF-8 {_quoted(path)} > closes.csv"
        raise _refused("the file is not UTF-8 text", hint, str(path)) from error
    except csv.Error as error:
        raise _refused(
            f"the file is not CSV: {error}", "write one `date,close` per line", str(path)
        ) from error
    priced = [row for row in rows if row.close is not None]
    if not priced:
        hint = "fill it with lines such as 2024-01-02,4742.83 under the header date,close"
        raise _refused("the file has a header, but no closes", hint, str(path))
    _check_gaps(priced, path, max_gap_days)
    return Closes(
        dates=tuple(row.day for row in priced),
        values=np.array([row.close for row in priced], dtype=np.float64),
        rows_without_close=len(rows) - len(priced),
    )


class _Lines(Protocol):
    """What csv.reader gives."""

    @property
    def line_num(self) -> int: ...

    def __iter__(self) -> Iterator[list[str]]: ...


def _rows(lines: _Lines, path: Path, columns: Columns) -> Iterator[_Row]:
    header = next((line for line in lines if any(cell.strip() for cell in line)), None)
    if header is None:
        hint = "name a file with a header date,close and a line for each day: "
        hint += "paceline data prepare sp500 --csv closes.csv"
        raise _refused("the file is empty", hint, str(path))
    date_at, close_at = _columns(header, path, columns)
    before: _Row | None = None
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path}:{lines.line_num}"
        if len(cells) <= max(date_at, close_at):
            hint = "write a date and a close; an empty close means that there was none"
            raise _refused(f"the line has {len(cells)} of {len(header)} columns", hint, where)
        row = _Row(lines.line_num, _day(cells[date_at], where), _close(cells[close_at], where))
        if before is not None and row.day <= before.day:
            what = f"{row.day} comes after {before.day} of line {before.line}, but dates must increase"
            raise _refused(what, _sorting(path) if date_at == 0 else "sort it by date", where)
        before = row
        yield row


def _columns(header: list[str], path: Path, said: Columns) -> tuple[int, int]:
    names = [cell.strip().lower() for cell in header]
    date_at = _find(names, said.date, DATE_NAMES, "date", path)
    # Many sources call the close by the name of the series: with two columns there is no doubt.
    only_other = [1 - date_at] if len(names) == 2 and said.close is None else []
    close_at = only_other[0] if only_other else _find(names, said.close, CLOSE_NAMES, "close", path)
    return date_at, close_at


def _find(names: list[str], said: str | None, usual: Iterable[str], what: str, path: Path) -> int:
    wanted = usual if said is None else (said.strip().lower(),)
    for name in wanted:
        if name in names:
            return names.index(name)
    listed = ", ".join(shown(name) for name in names[:10])
    missing = f"the file has no column {shown(said or what)}; its columns are {listed}"
    name_it = f"name the one you mean, such as --{what}-column {_quoted(names[-1] or 'NAME')}"
    hint = name_it if said is None else did_you_mean(said, names, otherwise=name_it)
    raise _refused(missing, hint, f"{path}:1")


def _day(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text.strip()[:10])
    except ValueError as error:
        what = f"the date is {shown(text)}, but it must be a day such as 2024-01-02"
        raise _refused(what, "write dates as YYYY-MM-DD", where) from error


def _close(text: str, where: str) -> float | None:
    written = text.strip()
    if written.lower() in _NO_CLOSE:
        return None
    hint = "write a number such as 4742.83, or leave the close empty if there was none"
    try:
        close = float(written)
    except ValueError as error:
        raise _refused(f"the close is {shown(text)}, but it must be a number", hint, where) from error
    if not math.isfinite(close) or close <= 0:
        raise _refused(f"the close is {shown(text)}, but it must be more than 0", hint, where)
    return close


def _check_gaps(rows: list[_Row], path: Path, max_gap_days: int) -> None:
    days = [(after.day - before.day).days for before, after in pairwise(rows)]
    gaps = [(rows[i], rows[i + 1], d) for i, d in enumerate(days) if d > max_gap_days]
    if not gaps:
        return
    hint = f"add the missing closes, or allow it: --max-gap-days {max(days)}"
    raise TaskDataError(
        [
            Problem(
                f"no close for {length} days, between {before.day} and {after.day};"
                f" more than {max_gap_days} days are a gap",
                hint,
                f"{path}:{after.line}",
            )
            for before, after, length in gaps[:_SHOWN_GAPS]
        ]
    )


def _sorting(path: Path) -> str:
    name = _quoted(path)
    return f"sort it by date: (head -n 1 {name}; tail -n +2 {name} | sort -u) > sorted.csv"


def _quoted(name: object) -> str:
    return shlex.quote(str(name))


def _refused(what: str, hint: str, where: str) -> ConfigError:
    return TaskDataError([Problem(what, hint, where)])
