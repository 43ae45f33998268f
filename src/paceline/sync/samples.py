"""Sample order: which samples worker r uses at step t, the same in every mode.

The run reads one endless stream: epoch 0's permutation, then epoch 1's, and so
on. Step t of all workers together owns positions [t*B, (t+1)*B) of the stream,
where B is the global batch; worker r owns its slice of that. So every sample
is seen once per epoch, batches are always full (a batch may straddle two
epochs), and two modes with the same seed, steps and batches do equal work on
equal data, however their workers are scheduled.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
MIXED_BLOCKS = 8


class SampleStream:
    """The stream of sample indices for a data set of `num_samples`, from `seed`.

    `in_order`: every epoch is 0, 1, 2 …, and the seed is not used; for time series.
    `block`: blocks of this many samples stay near each other (shuffle_blocks); for samples fetched together.
    """

    def __init__(
        self, *, num_samples: int, seed: int, in_order: bool = False, block: int | None = None
    ) -> None:
        assert num_samples > 0, "a task needs at least one sample"
        self._block = block
        self._num_samples = num_samples
        self._seed = seed
        self._in_order = in_order
        self._epochs: dict[int, Indices] = {}

    def take(self, start: int, count: int) -> Indices:
        """The indices at stream positions start … start+count-1."""
        epoch, offset = divmod(start, self._num_samples)
        if offset + count <= self._num_samples:
            return self._epoch(epoch)[offset : offset + count]
        parts = []
        while count > 0:
            part = self._epoch(epoch)[offset : offset + count]
            parts.append(part)
            count -= len(part)
            epoch += 1
            offset = 0
        return np.concatenate(parts)

    def _epoch(self, epoch: int) -> Indices:
        if epoch not in self._epochs:
            # A run only moves forward, and workers are at most a few epochs apart.
            for old in [e for e in self._epochs if e < epoch - 1]:
                del self._epochs[old]
            self._epochs[epoch] = self._order(epoch)
        return self._epochs[epoch]

    def _order(self, epoch: int) -> Indices:
        if self._in_order:
            return np.arange(self._num_samples)
        rng = np.random.default_rng((self._seed, epoch))
        if self._block is not None:
            return shuffle_blocks(self._num_samples, self._block, rng)
        return rng.permutation(self._num_samples)


def shuffle_blocks(num_samples: int, block: int, rng: np.random.Generator) -> Indices:
    """Blocks of `block` samples in a random order, shuffled within groups of eight blocks.

    A sequential reader needs eight blocks at a time, or nine where the short last block is among them.
    """
    starts = rng.permutation(-(-num_samples // block)) * block
    order = np.concatenate([np.arange(start, min(start + block, num_samples)) for start in starts])
    for first in range(0, num_samples, MIXED_BLOCKS * block):
        rng.shuffle(order[first : first + MIXED_BLOCKS * block])
    return order


def slice_of(rank: int, step: int, batch_sizes: Sequence[int]) -> tuple[int, int]:
    """(start, count) in the stream for worker `rank` at `step`."""
    start = step * sum(batch_sizes) + sum(batch_sizes[:rank])
    return start, batch_sizes[rank]
