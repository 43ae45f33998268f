"""Which records make a data set in shards? Those of a built-in task's files, or rows of your own arrays."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.app.shard_arrays import arrays_source
from paceline.datasets.index import Column, Records, record_type
from paceline.datasets.writing import PartSource, Source, Sums
from paceline.errors import Problem, TaskDataError
from paceline.tasks.charlm_text import CODE, PART, encode, problem, read_text, text_of
from paceline.tasks.cifar_files import PIXELS, colour_sums, find, read_images
from paceline.tasks.sp500_file import Labelled, read_sp500

SEED = 0  # of the toy text
Arrays = Mapping[str, NDArray[np.generic]]


def source_of(words: Sequence[str]) -> Source:
    """`charlm FILE…`, `cifar10 FOLDER`, `sp500 FILE`, or files of arrays."""
    known: dict[str, Callable[[Sequence[str]], Source]] = {
        "charlm": _text,
        "cifar10": _images,
        "sp500": _closes,
    }
    first, *rest = words
    return known[first](rest) if first in known else arrays_source([Path(word) for word in words])


def _text(files: Sequence[str]) -> Source:
    text = "".join(read_text(file) for file in files) if files else text_of(SEED, None)
    if not text:
        raise problem(f"there is nothing to write: {', '.join(files)} is empty", "name a text file")
    codes, characters = encode(text)
    small = codes.astype(np.min_scalar_type(len(characters) - 1))
    return Source(task="charlm", facts={"characters": characters}, parts={PART: in_memory({CODE: small})})


def _images(places: Sequence[str]) -> Source:
    read = read_images(find(_only("cifar10", places)))
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
        what = f"{task} is read from one place, but {len(places)} are named"
        raise TaskDataError([Problem(what, f"paceline data shard {task} {places[0]} --out …")])
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
