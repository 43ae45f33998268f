"""Samples of the task sp500: four arrays, checked before anything is trained.

`paceline data prepare sp500` writes such a file; any other with X_train,
y_train, X_test and y_test, in the order of time, is as good. Nothing in it is
ever executed (allow_pickle=False).
"""

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError, Problem, TaskDataError
from paceline.datasets.opening import PartReader, check_task, open_data_set

NAMES = ("X_train", "y_train", "X_test", "y_test")


class Labelled(NamedTuple):
    x: NDArray[np.float64]  # samples, days, features
    y: NDArray[np.int64]  # 1: up


class Sp500File(NamedTuple):
    train: Labelled
    test: Labelled


def read_sp500(path: Path) -> Sp500File:
    arrays = _arrays(path)
    train = _labelled(path, "train", arrays["X_train"], arrays["y_train"])
    test = _labelled(path, "test", arrays["X_test"], arrays["y_test"])
    if train.x.shape[1:] != test.x.shape[1:]:
        message = f"{path}: a sample of X_train has the shape {train.x.shape[1:]}, but one of X_test"
        raise _refused(f"{message} {test.x.shape[1:]}", _again(path))
    return Sp500File(train, test)


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with path.open("rb") as opened:  # here, so that it is closed whatever numpy makes of it
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise _refused(f"{path} is one array, but sp500 reads an npz file of several", _again(path))
            missing = [name for name in NAMES if name not in file]
            if missing:
                raise _refused(f"{path} has no {', '.join(missing)}", _again(path))
            return {name: file[name] for name in NAMES}
    except FileNotFoundError as error:
        raise _refused(f"sp500 needs {path}, which does not exist", _again(path)) from error
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror or error}", _again(path)) from error
    # What numpy raises for a file that is cut off, is none of its own, or holds objects.
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _refused(f"{path} is not an npz file of plain arrays: {error}", _again(path)) from error


def _labelled(path: Path, part: str, x: NDArray[np.generic], y: NDArray[np.generic]) -> Labelled:
    if x.ndim == 2:
        x = x[:, :, np.newaxis]  # one feature a day
    if x.ndim != 3 or y.shape != x.shape[:1] or 0 in x.shape:
        message = (
            f"{path}: X_{part} has the shape {x.shape} and y_{part} {y.shape}, but sp500 reads samples of"
        )
        raise _refused(f"{message} days of features, and one label for each", _again(path))
    try:
        values = x.astype(np.float64)
        labels = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise _refused(
            f"{path}: X_{part} or y_{part} has values that are not numbers", _again(path)
        ) from error
    if not np.isfinite(values).all():
        raise _refused(f"{path}: X_{part} holds numbers that are not finite", _again(path))
    if not np.isin(labels, (0.0, 1.0)).all():
        raise _refused(f"{path}: y_{part} holds other labels than 0 (down) and 1 (up)", _again(path))
    return Labelled(values, labels.astype(np.int64))


def _again(path: Path) -> str:
    return f"create it from daily closes: paceline data prepare sp500 --csv closes.csv --out {path}"


def _refused(message: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(message, hint)])


TRAINING = "train"
TEST = "test"
WINDOW = "window"
UP = "up"


def read_stored_sp500(url: str, cache: str | None, cache_mb: int | None) -> Sp500File:
    data_set = check_task(open_data_set(url, cache=cache, cache_mb=cache_mb), "sp500")
    return Sp500File(
        _labelled_from_shards(data_set.reader(TRAINING)), _labelled_from_shards(data_set.reader(TEST))
    )


def _labelled_from_shards(reader: PartReader) -> Labelled:
    records = reader.rows(range(len(reader)))
    return Labelled(records[WINDOW].copy(), records[UP].copy())
