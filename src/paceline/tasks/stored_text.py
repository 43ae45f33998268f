"""How is a text in shards cut into windows? Each character is a record: a window is a stretch of them."""

import numpy as np
import torch
from torch import Tensor

from paceline.datasets.opening import check_task, open_data_set
from paceline.datasets.reader import PartReader
from paceline.sync.samples import Indices
from paceline.tasks.charlm_text import CODE, PART


class StoredText:
    """Characters `first` to `first + count` of a text that lies elsewhere."""

    def __init__(self, reader: PartReader, first: int, count: int) -> None:
        self._reader, self._first, self._count = reader, first, count

    def __len__(self) -> int:
        return self._count

    def cut(self, at: int) -> "tuple[StoredText, StoredText]":
        rest = StoredText(self._reader, self._first + at, self._count - at)
        return StoredText(self._reader, self._first, at), rest

    def stretches(self, starts: Indices, width: int) -> Tensor:
        found = self._reader.take(starts + self._first, width)[CODE]
        return torch.from_numpy(found.astype(np.int64))

    def expect(self, starts: Indices, width: int) -> None:
        self._reader.expect(starts + self._first, width)


def open_text(url: str, cache: str | None, cache_mb: int | None) -> tuple[StoredText, str]:
    """The text, and its characters in the order of their codes."""
    found = check_task(open_data_set(url, cache=cache, cache_mb=cache_mb), "charlm")
    reader = found.reader(PART)
    return StoredText(reader, 0, len(reader)), str(found.index.facts["characters"])
