"""Preparation of the sp500 file: daily closes become windows, split by time.

Training comes before the test, and `embargo` samples between them are dropped:
no close that any test sample looks at was read, or asked about, in
training. The same closes and settings give the same bytes.
"""

import csv
import hashlib
import io
import json
import math
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from paceline.config.values import show_value
from paceline.core.disk import write_durably
from paceline.core.errors import CannotWriteError, ConfigError, Problem, TaskDataError
from paceline.core.humanize import did_you_mean

# Rows without a close (holidays, in the files of some sources) are left out and
# counted. Everything else that is not plain is refused with its line, because a
# wrong close is a wrong label.

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
    """Read the closes. Raises ConfigError, with the line, for any invalid content."""
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
    """Interface of csv.reader."""

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
            message = f"{row.day} comes after {before.day} of line {before.line}, but dates must increase"
            raise _refused(message, _sorting(path) if date_at == 0 else "sort it by date", where)
        before = row
        yield row


def _columns(header: list[str], path: Path, columns: Columns) -> tuple[int, int]:
    names = [cell.strip().lower() for cell in header]
    date_at = _find(names, columns.date, DATE_NAMES, "date", path)
    # Many sources call the close by the name of the series: with two columns there is no doubt.
    only_other = [1 - date_at] if len(names) == 2 and columns.close is None else []
    close_at = only_other[0] if only_other else _find(names, columns.close, CLOSE_NAMES, "close", path)
    return date_at, close_at


def _find(names: list[str], given: str | None, defaults: Iterable[str], noun: str, path: Path) -> int:
    candidates = defaults if given is None else (given.strip().lower(),)
    for name in candidates:
        if name in names:
            return names.index(name)
    listed = ", ".join(show_value(name) for name in names[:10])
    missing = f"the file has no column {show_value(given or noun)}; its columns are {listed}"
    name_it = f"name a column, such as --{noun}-column {_quoted(names[-1] or 'NAME')}"
    hint = name_it if given is None else did_you_mean(given, names, otherwise=name_it)
    raise _refused(missing, hint, f"{path}:1")


def _day(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text.strip()[:10])
    except ValueError as error:
        message = f"the date is {show_value(text)}, but it must be a day such as 2024-01-02"
        raise _refused(message, "write dates as YYYY-MM-DD", where) from error


def _close(text: str, where: str) -> float | None:
    written = text.strip()
    if written.lower() in _NO_CLOSE:
        return None
    hint = "write a number such as 4742.83, or leave the close empty if there was none"
    try:
        close = float(written)
    except ValueError as error:
        raise _refused(f"the close is {show_value(text)}, but it must be a number", hint, where) from error
    if not math.isfinite(close) or close <= 0:
        raise _refused(f"the close is {show_value(text)}, but it must be more than 0", hint, where)
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


def _refused(message: str, hint: str, where: str) -> ConfigError:
    return TaskDataError([Problem(message, hint, where)])


# Features of day t look at the closes t-LOOKBACK … t and at nothing later; the
# label of day t says whether close t+1 is higher than close t. So a sample never
# contains what it is asked. tests/datasets/test_sp500_leaks.py proves it.

LOOKBACK = 20  # closes before its own that a day's features look at
FEATURES = ("log_return", "return_5", "return_20", "volatility_20", "above_mean_20", "rsi_14")

Floats = NDArray[np.float64]


class Samples(NamedTuple):
    """In the order of time. `days[i]` is the last day of window i, as an index of the closes."""

    x: NDArray[np.float32]  # samples, days of the window, features
    y: NDArray[np.int64]  # 1: the next close is higher; 0: it is lower or equal
    days: NDArray[np.int64]


def samples_of(closes: Floats, *, window: int) -> Samples:
    """All samples that the closes have; none if there are fewer than `fewest_closes(window)`."""
    if len(closes) < min_closes(window):
        return Samples(
            np.empty((0, window, len(FEATURES)), np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
        )
    windows = sliding_window_view(features_of(closes), window, axis=0).swapaxes(1, 2)
    days = np.arange(LOOKBACK + window - 1, len(closes) - 1)  # the last day has no tomorrow
    rises = closes[days + 1] > closes[days]
    return Samples(np.ascontiguousarray(windows[: len(days)], np.float32), rises.astype(np.int64), days)


def min_closes(window: int) -> int:
    """Minimum number of closes for one sample."""
    return LOOKBACK + window + 1


def features_of(closes: Floats) -> Floats:
    """Row i is about day LOOKBACK + i; columns as in FEATURES."""
    logs = np.log(closes)
    returns = np.diff(logs)  # returns[i] is that of day i + 1
    means = sliding_window_view(closes, 20)[1:].mean(axis=1)
    columns = (
        returns[LOOKBACK - 1 :],
        logs[LOOKBACK:] - logs[LOOKBACK - 5 : -5],
        logs[LOOKBACK:] - logs[:-20],
        sliding_window_view(returns, 20).std(axis=1),
        logs[LOOKBACK:] - np.log(means),
        _strength(sliding_window_view(returns, 14)[LOOKBACK - 14 :]),
    )
    return np.stack(columns, axis=1)


def _strength(returns: Floats) -> Floats:
    """Which part of all movement was upwards (RSI with plain means, from 0 to 1); a half if nothing moved."""
    upwards = np.maximum(returns, 0.0).sum(axis=1)
    moved = np.abs(returns).sum(axis=1)
    strength: Floats = np.divide(upwards, moved, out=np.full_like(moved, 0.5), where=moved > 0)
    return strength


SCHEMA = "paceline.sp500/1"
MIN_TRAINING = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    samples: int
    first: date  # the last day of the first window
    last: date
    up_rate: float  # how often tomorrow was higher


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    out: Path
    sha256: str
    closes: int
    rows_without_close: int
    window: int
    embargo: int
    train: Part
    test: Part


def prepare(closes: Closes, out: Path, *, window: int, test_fraction: float) -> Prepared:
    samples = samples_of(closes.values, window=window)
    gap = embargo(window)
    test_from = len(samples.y) - held_out(len(samples.y), test_fraction)
    train_to = test_from - gap
    if train_to < MIN_TRAINING:
        raise _too_few(len(closes.values), window, test_fraction)
    train = _part(samples, 0, train_to)
    test = _part(samples, test_from, len(samples.y))
    meta = {
        "schema": SCHEMA,
        "label": "1: the next close is higher than that of the window's last day; 0: lower or equal",
        "window": window,
        "lookback": LOOKBACK,
        "embargo": gap,
        "test_fraction": test_fraction,
        "closes_sha256": hashlib.sha256(closes.values.tobytes()).hexdigest(),
    }
    content = npz_bytes(
        {
            **_arrays("train", train, closes),
            **_arrays("test", test, closes),
            "features": np.array(FEATURES),
            "meta": np.array(json.dumps(meta, sort_keys=True)),
        }
    )
    _write(out, content)
    return Prepared(
        out=out,
        sha256=hashlib.sha256(content).hexdigest(),
        closes=len(closes.values),
        rows_without_close=closes.rows_without_close,
        window=window,
        embargo=gap,
        train=_about(train, closes),
        test=_about(test, closes),
    )


def embargo(window: int) -> int:
    """Samples dropped before the test. The first test window then begins after the last training label."""
    return window + LOOKBACK


def held_out(samples: int, test_fraction: float) -> int:
    return max(1, round(samples * test_fraction))


def npz_bytes(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """What np.savez writes, with nothing in it that differs from one writing to the next."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue())  # dated 1980, always
    return whole.getvalue()


def _part(samples: Samples, first: int, end: int) -> Samples:
    return Samples(samples.x[first:end], samples.y[first:end], samples.days[first:end])


def _arrays(name: str, part: Samples, closes: Closes) -> dict[str, NDArray[np.generic]]:
    dates = np.array([closes.dates[day].isoformat() for day in part.days])
    return {f"X_{name}": part.x, f"y_{name}": part.y, f"dates_{name}": dates}


def _about(part: Samples, closes: Closes) -> Part:
    return Part(
        samples=len(part.y),
        first=closes.dates[part.days[0]],
        last=closes.dates[part.days[-1]],
        up_rate=float(part.y.mean()),
    )


def _write(out: Path, content: bytes) -> None:
    try:
        write_durably(out, [content])
    except OSError as error:
        advice = "name a file, in a folder that you may write to, after --out"
        hint = advice if out.parent.is_dir() else f"make the folder first: mkdir -p {out.parent}"
        raise CannotWriteError(f"cannot write {out}: {error.strerror}", hint) from error


def _too_few(count: int, window: int, test_fraction: float) -> ConfigError:
    needed = min_closes(window)
    while _training_samples(needed, window, test_fraction) < MIN_TRAINING:
        needed += 1
    message = (
        f"{count} closes are too few: windows of {window} days, a test part of {test_fraction:g} and the"
    )
    message += f" {embargo(window)} days between training and test need {needed} or more"
    enough = (
        w for w in range(window - 1, 0, -1) if _training_samples(count, w, test_fraction) >= MIN_TRAINING
    )
    smaller = next(enough, None)
    hint = "use a longer file" if smaller is None else f"use a longer file, or --window {smaller}"
    return TaskDataError([Problem(message, hint, "--csv")])


def _training_samples(closes: int, window: int, test_fraction: float) -> int:
    samples = max(0, closes - min_closes(window) + 1)
    return samples - held_out(samples, test_fraction) - embargo(window)
