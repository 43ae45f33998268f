"""Samples that already lie in memory as tensors, one row per sample."""

import torch
from torch import Tensor

from paceline.sync.samples import Indices


class TensorSamples:
    def __init__(self, *columns: Tensor) -> None:
        assert columns, "at least one column"
        assert len({len(c) for c in columns}) == 1, "every column has one row per sample"
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def batch(self, indices: Indices) -> tuple[Tensor, ...]:
        rows = torch.from_numpy(indices)
        return tuple(column.index_select(0, rows) for column in self.columns)

    def rows(self, rows: range) -> tuple[Tensor, ...]:
        """So many in a row; views."""
        return tuple(column[rows.start : rows.stop] for column in self.columns)
