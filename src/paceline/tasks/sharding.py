"""`paceline data shard` and `verify`: write a data set in shards; read one and check it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import Problem, TaskDataError
from paceline.datasets.fetching import read_block, read_index
from paceline.datasets.index import Block, Column, Part, Records, Shard, record_type
from paceline.datasets.writing import (
    OnBytes,
    PartSource,
    Source,
    Sums,
    WriteSummary,
    arrays_source,
    write_data_set,
)
from paceline.plan.urls import find_url_problem
from paceline.storage.store import DamagedDataError, MissingDataError, Store, open_store
from paceline.tasks.cifar10.data import PIXELS, colour_sums, find_data, read_images
from paceline.tasks.sp500.data import Labelled, read_sp500
from paceline.tasks.text import CODE, PART, encode, problem, read_text, text_of

SEED = 0  # of the toy text
Arrays = Mapping[str, NDArray[np.generic]]


def source_of(arguments: Sequence[str]) -> Source:
    """`charlm FILE…`, `cifar10 FOLDER`, `sp500 FILE`, or files of arrays."""
    known: dict[str, Callable[[Sequence[str]], Source]] = {
        "charlm": _text,
        "cifar10": _images,
        "sp500": _closes,
    }
    first, *rest = arguments
    return known[first](rest) if first in known else arrays_source([Path(word) for word in arguments])


def _text(files: Sequence[str]) -> Source:
    text = "".join(read_text(file) for file in files) if files else text_of(SEED, None)
    if not text:
        raise problem(f"there is nothing to write: {', '.join(files)} is empty", "name a text file")
    codes, characters = encode(text)
    small = codes.astype(np.min_scalar_type(len(characters) - 1))
    return Source(task="charlm", facts={"characters": characters}, parts={PART: in_memory({CODE: small})})


def _images(places: Sequence[str]) -> Source:
    read = read_images(find_data(_only("cifar10", places)))
    parts = {"train": read.training, "test": read.test}
    made = {
        name: in_memory({"image": images, "label": labels}, _colours)
        for name, (images, labels) in parts.items()
    }
    return Source(task="cifar10", facts={}, parts=made)


def _colours(records: Records) -> Sums:
    sums, squares = colour_sums(records["image"].reshape(-1, *PIXELS))
    return {"sums": sums.tolist(), "squares": squares.tolist()}


def _closes(files: Sequence[str]) -> Source:
    file = read_sp500(Path(_only("sp500", files) or "sp500_classification.npz"))

    def part(labelled: Labelled) -> PartSource:
        return in_memory({"window": labelled.x, "up": labelled.y})

    return Source(task="sp500", facts={}, parts={"train": part(file.train), "test": part(file.test)})


def _only(task: str, places: Sequence[str]) -> str | None:
    if len(places) > 1:
        message = f"{task} reads one location, but {len(places)} are given"
        raise TaskDataError([Problem(message, f"paceline data shard {task} {places[0]} --out …")])
    return places[0] if places else None


def in_memory(arrays: Arrays, sums: Callable[[Records], Sums] = lambda _: {}) -> PartSource:
    columns = tuple(
        Column(name=name, kind=array.dtype.newbyteorder("<").str, shape=array.shape[1:])
        for name, array in arrays.items()
    )

    def read(first: int, end: int) -> Records:
        records = np.empty(end - first, dtype=record_type(columns))
        for name, array in arrays.items():
            records[name] = array[first:end]
        return records

    return PartSource(columns=columns, records=len(next(iter(arrays.values()))), read=read, sums=sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    task: str
    records: dict[str, int]  # by part
    shards: int
    bytes: int
    wrong: tuple[str, ...]  # what is the matter with which file


def shard(
    arguments: Sequence[str], *, out: str, shard_records: int | None, on_bytes: OnBytes
) -> WriteSummary:
    store = _store(out)
    return write_data_set(store, source_of(arguments), shard_records=shard_records, on_bytes=on_bytes)


def verify(url: str, on_bytes: OnBytes) -> Verified:
    store = _store(url)
    index = read_index(store)
    wrong = list[str]()
    done = 0
    shards = 0
    for part in index.parts.values():
        for stored_shard in part.shards:
            shards += 1
            done += stored_shard.records * part.record_bytes
            try:
                _prove(store, part, stored_shard)
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
        message = f"{store.url}/{shard.file} does not match its index: the SHA-256 differs"
        raise DamagedDataError(message, "write it again")


def _store(url: str) -> Store:
    if (wrong := find_url_problem(url)) is not None:
        raise TaskDataError([Problem(*wrong)])
    return open_store(url)
