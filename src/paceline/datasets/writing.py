"""How does a data set get into a store, shard by shard, so that it can be interrupted? The index comes last.

The same samples always become the same bytes. So whoever runs it again writes
only what is not there, or is other than it should be; and where an index says
that something else lies there, nothing is written.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from paceline.datasets.errors import NoDataSetError
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
from paceline.datasets.reading import read_index, tried
from paceline.datasets.store import Store
from paceline.errors import PacelineError

SHARD_BYTES = 16 << 20  # where nobody says how many samples a shard has
Sums = dict[str, list[int]]


class OtherDataError(PacelineError):
    """A place holds another data set already."""

    code = "E803"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSource:
    """Where the records of a part come from: asked for in order, a shard at a time."""

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
class Written:
    index: Index
    shards: int = 0
    written: int = 0  # of these shards; the others were there
    bytes: int = 0


OnBytes = Callable[[int, int | None], None]


def write_data_set(store: Store, source: Source, *, shard_records: int | None, on_bytes: OnBytes) -> Written:
    former = _former(store)
    done = Written(former or Index(task=source.task, facts={}, parts={}))
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
        tried(store, partial(store.write, INDEX, raw, sha256=digest))
    return done


def _shards(name: str, part: PartSource, count: int) -> Iterator[tuple[int, Shard, bytes]]:
    dtype = record_type(part.columns)
    block = min(block_records_of(dtype.itemsize), count)
    for number, first in enumerate(range(0, part.records, count)):
        records = part.read(first, min(first + count, part.records))
        assert records.dtype == dtype, "a source's records have its columns"
        header, body = _header(records), records.tobytes()
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


def _put(store: Store, shard: Shard, data: bytes, done: Written) -> None:
    is_there = tried(store, partial(store.sha256, shard.file)) == shard.sha256
    if not is_there:
        tried(store, partial(store.write, shard.file, data, sha256=shard.sha256))
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
        "name another place by --out, or remove that one first",
    )
