"""How do daily closes become the file that the task sp500 reads? Windows, cut by time, written at once.

Training comes before the test, and `embargo` samples between them are dropped:
no close that any test sample looks at was looked at, or asked about, in
training. The same closes and settings give the same bytes.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.app.sp500.closes import Closes
from paceline.app.sp500.windows import FEATURES, LOOKBACK, Samples, fewest_closes, samples_of
from paceline.disk import write_durably
from paceline.errors import CannotWriteError, ConfigError, Problem, TaskDataError

SCHEMA = "paceline.sp500/1"
FEWEST_TRAINING = 10


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
    if train_to < FEWEST_TRAINING:
        raise _too_few(len(closes.values), window, test_fraction)
    train, test = _part(samples, 0, train_to), _part(samples, test_from, len(samples.y))
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
            one = io.BytesIO()
            np.lib.format.write_array(one, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), one.getvalue())  # dated 1980, always
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
        mine = "name a file, in a folder that you may write to, after --out"
        hint = mine if out.parent.is_dir() else f"make the folder first: mkdir -p {out.parent}"
        raise CannotWriteError(f"cannot write {out}: {error.strerror}", hint) from error


def _too_few(count: int, window: int, test_fraction: float) -> ConfigError:
    needed = fewest_closes(window)
    while _training_samples(needed, window, test_fraction) < FEWEST_TRAINING:
        needed += 1
    what = f"{count} closes are too few: windows of {window} days, a test part of {test_fraction:g} and the"
    what += f" {embargo(window)} days between training and test take {needed} or more"
    enough = (
        w for w in range(window - 1, 0, -1) if _training_samples(count, w, test_fraction) >= FEWEST_TRAINING
    )
    smaller = next(enough, None)
    hint = "use a longer file" if smaller is None else f"use a longer file, or --window {smaller}"
    return TaskDataError([Problem(what, hint, "--csv")])


def _training_samples(closes: int, window: int, test_fraction: float) -> int:
    samples = max(0, closes - fewest_closes(window) + 1)
    return samples - held_out(samples, test_fraction) - embargo(window)
