"""Synchronous SGD: the gradients of all workers are averaged at every step.

Every worker then makes the same update, so all replicas stay bitwise equal.
With unequal batches each gradient is weighted by its batch, so the mean is
that of the union of the batches. The all-reduce is in allreduce.py; this file
chooses the mean: exact, compressed, or robust against Byzantine workers.
"""

from torch import Tensor

from paceline.core.ids import Step
from paceline.strategies.allreduce import AllReduceStrategy
from paceline.strategies.means import Mean, mean_of
from paceline.strategies.robust import robust_mean_of


class Ssgd(AllReduceStrategy):
    def _make_means(self, shared: Tensor) -> None:
        layout = self._arena.layout
        robust = robust_mean_of(self._plan, self._links, shared, layout)
        self._mean: Mean = robust or mean_of(
            self._plan, self._links, shared, lossy_end=layout.buffers_start, pieces=layout.parameters
        )
        self._mean.restore(self._saved)

    def _mean_at(self, step: Step) -> Mean:
        return self._mean

    def snapshot(self) -> dict[str, Tensor]:
        return self._mean.snapshot()
