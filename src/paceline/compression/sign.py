"""What is left of a number in one bit? Its sign; a block shares one magnitude, the mean of its own.

Alone it does not converge even on some convex problems; with an error memory
it does (Karimireddy 2019, arXiv 1901.09847). Blocks are small, because a large
magnitude would drown the small ones it shares a block with; so that they stay
cheap, a magnitude travels as bfloat16: it has the range of float32, and what
the rounding leaves out the memory makes up for like everything else.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.compression.coder import as_bytes, from_bytes, in_blocks, num_blocks

SCALE = torch.bfloat16
SCALE_BYTES = 2
BLOCK = 320  # numbers that share a magnitude; its 16 bits then add a twentieth to theirs


@dataclass(frozen=True, slots=True)
class Sign:
    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return -(-numel // 8) + SCALE_BYTES * num_blocks(numel, BLOCK)

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        sums = in_blocks(vector.abs(), BLOCK).sum(1)
        if sums.numel():  # the last block may hold fewer numbers than the others
            sums[:-1] /= BLOCK
            sums[-1] /= (vector.numel() - 1) % BLOCK + 1
        return torch.cat([as_bytes(sums.to(SCALE)), _packed(vector >= 0)])

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        split = SCALE_BYTES * num_blocks(numel, BLOCK)
        scales = from_bytes(payload[:split], SCALE).to(dtype)
        signs = _unpacked(payload[split:], numel).to(dtype).mul_(2).sub_(1)
        return in_blocks(signs, BLOCK).mul_(scales[:, None]).view(-1)[:numel]


def _packed(bits: Tensor) -> Tensor:
    """Eight to a byte, the first in the lowest place."""
    if bits.device.type == "cpu":  # numpy does it many times faster than torch can
        return torch.from_numpy(np.packbits(bits.numpy(), bitorder="little"))
    return packed_by_torch(bits)


def _unpacked(payload: Tensor, numel: int) -> Tensor:
    if payload.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(payload.numpy(), count=numel, bitorder="little"))
    return unpacked_by_torch(payload, numel)


def packed_by_torch(bits: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.numel() % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def unpacked_by_torch(payload: Tensor, numel: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=payload.device)
    return ((payload[:, None] >> places) & 1).view(-1)[:numel]
