"""How much is saved by a shorter floating type? Half, or three quarters of float64, at little cost."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.compression.coder import as_bytes, from_bytes
from paceline.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Cast:
    short: torch.dtype

    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return numel * self.short.itemsize

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        largest, limit = _largest(vector), torch.finfo(self.short).max
        if limit < largest < math.inf:  # infinity itself passes, and stays visible
            raise TrainingError(
                f"a number of size {largest:.4g} does not fit into {self.short}, which ends at {limit:.4g}",
                "use --compress bf16, which has the range of float32, or clip gradients with --clip-norm",
            )
        return as_bytes(vector.to(self.short))

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        return from_bytes(payload, self.short).to(dtype, copy=True)


def _largest(vector: Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    if not vector.numel():
        return 0.0
    low, high = torch.aminmax(vector)  # one pass; asking every number whether it is finite costs several
    return max(float(high), -float(low))
