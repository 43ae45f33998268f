"""Which few numbers matter most? The largest in magnitude, sent with their places.

Values travel in the vector's own type, so that sending all of them changes no
bit. NaN counts as the largest, so it is sent and not hidden.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.compression.coder import as_bytes, from_bytes

PLACE_BYTES = 4


@dataclass(frozen=True, slots=True)
class TopK:
    part: float  # of the numbers, more than 0 and at most 1

    def count(self, numel: int) -> int:
        """At least one; a product such as 0.1 · 30 must not round up to 4."""
        return min(numel, max(1, math.ceil(self.part * numel - 1e-9)))

    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return self.count(numel) * (PLACE_BYTES + dtype.itemsize)

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        assert vector.numel() < 2**31, "a place is 4 bytes"
        places = torch.topk(vector.abs(), self.count(vector.numel()), sorted=False).indices
        return torch.cat([as_bytes(places.to(torch.int32)), as_bytes(vector[places])])

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        found = torch.zeros(numel, dtype=dtype, device=payload.device)
        self.add_to(found, payload)
        return found

    def add_to(self, total: Tensor, payload: Tensor) -> None:
        places = self.places(payload, total.dtype)
        values = from_bytes(payload[PLACE_BYTES * places.numel() :], total.dtype)
        total.index_add_(0, places, values)

    def places(self, payload: Tensor, dtype: torch.dtype) -> Tensor:
        count = payload.numel() // (PLACE_BYTES + dtype.itemsize)
        return from_bytes(payload[: PLACE_BYTES * count], torch.int32).long()
