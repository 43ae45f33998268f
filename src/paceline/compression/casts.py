"""How much is saved by a shorter floating type? Half, or three quarters of float64, at little cost."""

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
        cast = vector.to(self.short)
        if not bool(torch.isfinite(cast).all()) and bool(torch.isfinite(vector).all()):
            limit, largest = torch.finfo(self.short).max, float(vector.abs().max())
            raise TrainingError(
                f"a number of size {largest:.4g} does not fit into {self.short}, which ends at {limit:.4g}",
                "use --compress bf16, which has the range of float32, or clip gradients with --clip-norm",
            )
        return as_bytes(cast)

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        return from_bytes(payload, self.short).to(dtype, copy=True)
