"""How do files of arrays become the records of one part? Row by row, file after file, in the order named.

A .npy file is one column called `data`; a .npz file has a column for each of
its arrays, all with as many rows. Nothing in them is ever executed
(allow_pickle=False), and no more than one file is in memory at a time.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.datasets.index import Column, Records, record_type
from paceline.datasets.writing import PartSource, Source
from paceline.errors import ConfigError, Problem, TaskDataError

PART = "train"
_NUMBERS = "biuf"
Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    first: int  # its first row, counted through all files
    rows: int


def arrays_source(paths: Sequence[Path]) -> Source:
    files, columns, first = [], None, 0
    for path in paths:
        arrays = _arrays(path)
        found = tuple(_column(path, name, array) for name, array in sorted(arrays.items()))
        if columns is not None and found != columns:
            raise _refused(
                f"{path} has other columns than {paths[0]}: {_said(found)}, and not {_said(columns)}"
            )
        columns, rows = found, _rows(path, arrays)
        files.append(_File(path, first, rows))
        first += rows
    assert columns is not None, "at least one file is named"
    reader = _Reader(files, columns)
    part = PartSource(columns=columns, records=first, read=reader.read)
    return Source(task="arrays", facts={}, parts={PART: part})


class _Reader:
    def __init__(self, files: Sequence[_File], columns: tuple[Column, ...]) -> None:
        self._files, self._columns = files, columns
        self._open: tuple[Path, Arrays] | None = None

    def read(self, first: int, end: int) -> Records:
        records = np.empty(end - first, dtype=record_type(self._columns))
        for file in self._files:
            start, stop = max(first, file.first), min(end, file.first + file.rows)
            if start < stop:
                for name, array in self._arrays(file.path).items():
                    records[name][start - first : stop - first] = array[
                        start - file.first : stop - file.first
                    ]
        return records

    def _arrays(self, path: Path) -> Arrays:
        if self._open is None or self._open[0] != path:
            self._open = path, _arrays(path)
        return self._open[1]


def _arrays(path: Path) -> Arrays:
    try:
        if path.suffix == ".npy":
            return {"data": np.load(path, mmap_mode="r", allow_pickle=False)}
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise _refused(f"{path} is one array, but is not called .npy")
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise _refused(f"there is no {path}, and it is no task of ours either") from error
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror or error}") from error
    # What numpy raises for a file that is cut off, is none of its own, or holds objects.
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _refused(f"{path} is no npy or npz file of plain arrays: {error}") from error


def _column(path: Path, name: str, array: NDArray[np.generic]) -> Column:
    if array.ndim < 1 or array.dtype.kind not in _NUMBERS:
        raise _refused(f"{path}: {name} is no array of numbers with a row for each sample")
    return Column(name=name, kind=array.dtype.newbyteorder("<").str, shape=array.shape[1:])


def _rows(path: Path, arrays: Arrays) -> int:
    counts = {name: len(array) for name, array in arrays.items()}
    if not counts or len(set(counts.values())) > 1 or 0 in counts.values():
        said = ", ".join(f"{name} {count}" for name, count in counts.items()) or "no arrays"
        raise _refused(f"{path}: every array has a row for each sample, but here are {said}")
    return next(iter(counts.values()))


def _said(columns: Sequence[Column]) -> str:
    return ", ".join(f"{c.name} {c.kind}{list(c.shape)}" for c in columns)


def _refused(what: str) -> ConfigError:
    hint = (
        "write charlm, cifar10 or sp500 first, or name .npy or .npz files: paceline data shard a.npz --out …"
    )
    return TaskDataError([Problem(what, hint)])
