"""Samples of a data set in shards: as those in memory, but only requested records are read.

    StoredSamples(open_data_set("s3://bucket/prefix").reader("train"))

A sample is a record, given as a tuple of its columns.
"""

import numpy as np
import torch
from torch import Tensor

from paceline.datasets.index import Records
from paceline.datasets.opening import PartReader
from paceline.sync.samples import Indices


class StoredSamples:
    """Those of the part from `first` on, and `count` of them; None: all that follow."""

    def __init__(self, reader: PartReader, *, first: int = 0, count: int | None = None) -> None:
        self._reader = reader
        self._first = first
        self._count = len(reader) - first if count is None else count
        assert 0 <= first <= first + self._count <= len(reader), "they are within the part"

    def __len__(self) -> int:
        return self._count

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All of them, in memory: for few."""
        return self.rows(range(len(self)))

    def batch(self, indices: Indices) -> tuple[Tensor, ...]:
        return _columns(self._reader.take(indices + self._first).reshape(-1))

    def expect(self, indices: Indices) -> None:
        """Announce indices that will be requested soon, so that they can be read ahead."""
        self._reader.expect(indices + self._first)

    def rows(self, rows: range) -> tuple[Tensor, ...]:
        return _columns(self._reader.rows(range(self._first + rows.start, self._first + rows.stop)))


def _columns(records: Records) -> tuple[Tensor, ...]:
    names = records.dtype.names
    assert names is not None, "a record has columns"
    return tuple(torch.from_numpy(np.ascontiguousarray(records[name])) for name in names)
