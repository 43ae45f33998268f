"""What do `paceline data shard` and `verify` do? Write a data set in shards; read one, and prove it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.app.shard_sources import source_of
from paceline.datasets.errors import DamagedDataError, MissingDataError
from paceline.datasets.index import Block, Part, Shard
from paceline.datasets.reading import read_block, read_index
from paceline.datasets.store import Store, open_store
from paceline.datasets.writing import OnBytes, Written, write_data_set
from paceline.errors import Problem, TaskDataError
from paceline.plan.data_url import what_is_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    task: str
    records: dict[str, int]  # by part
    shards: int
    bytes: int
    wrong: tuple[str, ...]  # what is the matter with which file


def shard(words: Sequence[str], *, out: str, shard_records: int | None, on_bytes: OnBytes) -> Written:
    store = _store(out)
    return write_data_set(store, source_of(words), shard_records=shard_records, on_bytes=on_bytes)


def verify(url: str, on_bytes: OnBytes) -> Verified:
    store = _store(url)
    index = read_index(store)
    wrong, done, shards = list[str](), 0, 0
    for part in index.parts.values():
        for one in part.shards:
            shards += 1
            done += one.records * part.record_bytes
            try:
                _prove(store, part, one)
            except (DamagedDataError, MissingDataError) as error:
                wrong.append(error.what)
            on_bytes(done, index.total_bytes)
    return Verified(
        task=index.task,
        records={name: part.records for name, part in index.parts.items()},
        shards=shards,
        bytes=index.total_bytes,
        wrong=tuple(wrong),
    )


def _prove(store: Store, part: Part, shard: Shard) -> None:
    whole = Block(
        file=shard.file,
        start=0,
        size=shard.header_bytes + shard.records * part.record_bytes,
        sha256=shard.sha256,
    )
    if hashlib.sha256(read_block(store, whole)).hexdigest() != shard.sha256:
        what = f"{store.url}/{shard.file} is not what its index says: the SHA-256 differs"
        raise DamagedDataError(what, "write it again")


def _store(url: str) -> Store:
    if (wrong := what_is_wrong(url)) is not None:
        raise TaskDataError([Problem(*wrong)])
    return open_store(url)
