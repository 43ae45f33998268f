"""How are the CIFAR-10 images read from a data set in shards? As asked for; sums are in the index."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.datasets.opening import check_task, open_data_set
from paceline.datasets.reader import PartReader
from paceline.tasks.cifar_files import colour_sums, problem, statistics_of
from paceline.tasks.stored_samples import StoredSamples
from paceline.tasks.tensor_samples import TensorSamples

TRAINING, TEST = "train", "test"
IMAGE = "image"


RowSamples = TensorSamples | StoredSamples


class ImageSamples(NamedTuple):
    """As tasks/cifar_files.py's Images, wherever they lie."""

    training: RowSamples
    held_out: RowSamples
    test: RowSamples
    means: tuple[float, ...]
    deviations: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How many images; None: all."""

    subset: int | None
    test_subset: int | None
    hold_out: int


def open_images(url: str, wanted: Wanted, cache: str | None, cache_mb: int | None) -> ImageSamples:
    found = check_task(open_data_set(url, cache=cache, cache_mb=cache_mb), "cifar10")
    training, test = found.reader(TRAINING), found.reader(TEST)
    count = len(training) if wanted.subset is None else min(wanted.subset, len(training))
    cut = count - wanted.hold_out
    if cut < 1:
        raise problem(
            f"{wanted.hold_out} of {count} images are to be held out, and none is left to train on",
            "write for example --task-option valid=500, and a larger subset",
        )
    means, deviations = _statistics(training, cut)
    tested = len(test) if wanted.test_subset is None else min(wanted.test_subset, len(test))
    return ImageSamples(
        training=StoredSamples(training, count=cut),
        held_out=StoredSamples(training, first=cut, count=wanted.hold_out),
        test=StoredSamples(test, count=tested),
        means=means,
        deviations=deviations,
    )


def _statistics(reader: PartReader, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of the first so many images: whole shards by the sums in the index, the rest by reading it."""
    sums, squares = np.zeros(3, dtype=np.uint64), np.zeros(3, dtype=np.uint64)
    whole = [s for number, s in enumerate(reader.part.shards) if _end(reader, number) <= count]
    for shard in whole:
        sums += np.array(shard.sums["sums"], dtype=np.uint64)
        squares += np.array(shard.sums["squares"], dtype=np.uint64)
    for start in range(sum(shard.records for shard in whole), count, 2000):
        some = colour_sums(reader.rows(range(start, min(start + 2000, count)))[IMAGE])
        sums, squares = sums + some[0], squares + some[1]
    return statistics_of(sums, squares, count=count)


def _end(reader: PartReader, number: int) -> int:
    """The first record that is not in the shard of this number any more."""
    return min((number + 1) * reader.part.shard_records, len(reader))
