"""What must a codec do? Turn a vector into bytes and back, with a size that is known beforehand.

A coder is pure: equal input gives equal bytes, on every worker. What it cannot
represent (NaN, infinity, a block that holds one) comes back as NaN or
infinity, or raises; it never comes back as an ordinary number.
"""

from typing import Protocol

import torch
from torch import Tensor

BLOCK = 256  # elements that share one scale, unless a coder says otherwise


class Coder(Protocol):
    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """The exact size of what `encode` makes of a vector of this length and type."""
        ...

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        """The vector as bytes (uint8). `nonce` names the message: whoever rolls dice rolls them for it."""
        ...

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        """A vector of this length and type, on the payload's device."""
        ...


def as_bytes(tensor: Tensor) -> Tensor:
    if tensor.stride(-1) != 1:  # also a single number of a strided vector, which counts as contiguous
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.view(torch.uint8)


def from_bytes(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits as another type; copied where they do not start at a multiple of its size."""
    if payload.storage_offset() % dtype.itemsize:
        payload = payload.clone(memory_format=torch.contiguous_format)
    return payload.view(dtype)


def in_blocks(vector: Tensor, size: int = BLOCK) -> Tensor:
    """One block per row; the last one is filled up with zeros."""
    missing = -vector.numel() % size
    if missing:
        vector = torch.nn.functional.pad(vector, (0, missing))
    return vector.reshape(-1, size)


def num_blocks(numel: int, size: int = BLOCK) -> int:
    return -(-numel // size)
