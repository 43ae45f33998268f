"""Writing a data set into a store, shard by shard, resumable; the index is written last.

The same samples always become the same bytes. So a second run writes
only what is missing or differs; and where an index says
that something else lies there, nothing is written.
"""

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError, PacelineError, Problem, TaskDataError
from paceline.datasets.fetching import read_index, with_retries
from paceline.datasets.index import (
    INDEX,
    Column,
    Index,
    Part,
    Records,
    Shard,
    block_records_of,
    encode,
    record_type,
)
from paceline.storage.store import NoDataSetError, Store

SHARD_BYTES = 16 << 20  # default, where no number of samples per shard is given
Sums = dict[str, list[int]]


class OtherDataError(PacelineError):
    """A place holds another data set already."""

    code = "E803"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSource:
    """Source of the records of a part: read in order, a shard at a time."""

    columns: tuple[Column, ...]
    records: int
    read: Callable[[int, int], Records]  # from, to
    sums: Callable[[Records], Sums] = field(default=lambda _: {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    task: str
    facts: dict[str, Any]  # Any: JSON
    parts: Mapping[str, PartSource]

    @property
    def total_bytes(self) -> int:
        return sum(part.records * record_type(part.columns).itemsize for part in self.parts.values())


@dataclass(slots=True)
class WriteSummary:
    index: Index
    shards: int = 0
    written: int = 0  # of these shards; the others were there
    bytes: int = 0


OnBytes = Callable[[int, int | None], None]


def write_data_set(
    store: Store, source: Source, *, shard_records: int | None, on_bytes: OnBytes
) -> WriteSummary:
    former = _former(store)
    done = WriteSummary(former or Index(task=source.task, facts={}, parts={}))
    parts = {}
    for name, part in source.parts.items():
        size = record_type(part.columns).itemsize
        count = max(1, SHARD_BYTES // size) if shard_records is None else shard_records
        shards = []
        for number, shard, data in _shards(name, part, count):
            _refuse_another(store, former, name, number, shard)
            _put(store, shard, data, done)
            on_bytes(done.bytes, source.total_bytes)
            shards.append(shard)
        parts[name] = Part(
            name=name,
            columns=part.columns,
            records=part.records,
            shard_records=count,
            block_records=min(block_records_of(size), count),
            shards=tuple(shards),
        )
    done.index = Index(task=source.task, facts=source.facts, parts=parts)
    if done.index != former:
        if former is not None:
            raise _other(store)
        raw = encode(done.index)
        digest = hashlib.sha256(raw).hexdigest()
        with_retries(store, partial(store.write, INDEX, raw, sha256=digest))
    return done


def _shards(name: str, part: PartSource, count: int) -> Iterator[tuple[int, Shard, bytes]]:
    dtype = record_type(part.columns)
    block = min(block_records_of(dtype.itemsize), count)
    for number, first in enumerate(range(0, part.records, count)):
        records = part.read(first, min(first + count, part.records))
        assert records.dtype == dtype, "a source's records have its columns"
        header = _header(records)
        body = records.tobytes()
        step = block * dtype.itemsize
        blocks = [hashlib.sha256(body[at : at + step]).hexdigest() for at in range(0, len(body), step)]
        data = header + body
        shard = Shard(
            file=f"{name}-{number:06d}.npy",
            records=len(records),
            header_bytes=len(header),
            sha256=hashlib.sha256(data).hexdigest(),
            blocks=tuple(blocks),
            sums=part.sums(records),
        )
        yield number, shard, data


def _header(records: Records) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(records))
    return file.getvalue()


def _put(store: Store, shard: Shard, data: bytes, done: WriteSummary) -> None:
    is_there = with_retries(store, partial(store.sha256, shard.file)) == shard.sha256
    if not is_there:
        with_retries(store, partial(store.write, shard.file, data, sha256=shard.sha256))
        done.written += 1
    done.shards += 1
    done.bytes += len(data) - shard.header_bytes


def _former(store: Store) -> Index | None:
    try:
        return read_index(store)
    except NoDataSetError:
        return None


def _refuse_another(store: Store, former: Index | None, name: str, number: int, shard: Shard) -> None:
    """Before a byte of it is overwritten."""
    if former is None:
        return
    part = former.parts.get(name)
    if part is None or number >= len(part.shards) or part.shards[number] != shard:
        raise _other(store)


def _other(store: Store) -> OtherDataError:
    return OtherDataError(
        f"{store.url} holds another data set already, or the same in shards of another size",
        "name another location with --out, or remove that data set first",
    )


# A .npy file is one column called `data`; a .npz file has a column for each of
# its arrays, all with as many rows. Nothing in them is ever executed
# (allow_pickle=False), and no more than one file is in memory at a time.

PART = "train"
_NUMBERS = "biuf"
Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    first: int  # its first row, counted through all files
    rows: int


def arrays_source(paths: Sequence[Path]) -> Source:
    files = []
    columns = None
    first = 0
    for path in paths:
        arrays = _arrays(path)
        own_columns = tuple(_column(path, name, array) for name, array in sorted(arrays.items()))
        if columns is not None and own_columns != columns:
            raise _refused(
                f"{path} has other columns than {paths[0]}: {_describe_columns(own_columns)}"
                f", not {_describe_columns(columns)}"
            )
        columns = own_columns
        rows = _rows(path, arrays)
        files.append(_File(path, first, rows))
        first += rows
    assert columns is not None, "at least one file is named"
    reader = _Reader(files, columns)
    part = PartSource(columns=columns, records=first, read=reader.read)
    return Source(task="arrays", facts={}, parts={PART: part})


class _Reader:
    def __init__(self, files: Sequence[_File], columns: tuple[Column, ...]) -> None:
        self._files = files
        self._columns = columns
        self._open: tuple[Path, Arrays] | None = None

    def read(self, first: int, end: int) -> Records:
        records = np.empty(end - first, dtype=record_type(self._columns))
        for file in self._files:
            start = max(first, file.first)
            stop = min(end, file.first + file.rows)
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
        raise _refused(f"{path} is neither a file nor a built-in task") from error
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror or error}") from error
    # What numpy raises for a file that is cut off, is none of its own, or holds objects.
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _refused(f"{path} is not an npy or npz file of plain arrays: {error}") from error


def _column(path: Path, name: str, array: NDArray[np.generic]) -> Column:
    if array.ndim < 1 or array.dtype.kind not in _NUMBERS:
        raise _refused(f"{path}: {name} is not an array of numbers with one row per sample")
    return Column(name=name, kind=array.dtype.newbyteorder("<").str, shape=array.shape[1:])


def _rows(path: Path, arrays: Arrays) -> int:
    counts = {name: len(array) for name, array in arrays.items()}
    if not counts or len(set(counts.values())) > 1 or 0 in counts.values():
        lengths = ", ".join(f"{name} {count}" for name, count in counts.items()) or "no arrays"
        raise _refused(f"{path}: arrays must have one row per sample, but have {lengths}")
    return next(iter(counts.values()))


def _describe_columns(columns: Sequence[Column]) -> str:
    return ", ".join(f"{c.name} {c.kind}{list(c.shape)}" for c in columns)


def _refused(message: str) -> ConfigError:
    hint = (
        "write charlm, cifar10 or sp500 first, or name .npy or .npz files: paceline data shard a.npz --out …"
    )
    return TaskDataError([Problem(message, hint)])
