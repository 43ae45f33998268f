"""How does a number fit into a byte? As a multiple of its block's scale: its largest magnitude / 127.

Rounded to the nearest it is off by at most half a scale; together with an
error memory nothing is lost for good. Rounded at random, up or down in
proportion to nearness, it is right on average: E[decode(encode(x))] = x.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.compression.coder import as_bytes, from_bytes, in_blocks, num_blocks
from paceline.sync.dice import draw_u64

LARGEST = 127
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Int8:
    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return numel + SCALE_BYTES * num_blocks(numel)

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        blocks = in_blocks(vector)
        scales = _scales(blocks)
        divisors = torch.where(scales.isfinite() & (scales > 0), scales, 1.0).to(vector.dtype)
        # NaN has no byte; its block's scale is NaN or infinite, and makes it NaN again.
        codes = self._rounded(blocks / divisors[:, None], nonce).nan_to_num_(0.0).clamp_(-LARGEST, LARGEST)
        return torch.cat([as_bytes(scales), as_bytes(codes.to(torch.int8).view(-1)[: vector.numel()])])

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        split = SCALE_BYTES * num_blocks(numel)
        scales = from_bytes(payload[:split], torch.float32).to(dtype)
        blocks = in_blocks(payload[split:].view(torch.int8).to(dtype))
        return blocks.mul_(scales[:, None]).view(-1)[:numel]

    def _rounded(self, numbers: Tensor, nonce: int) -> Tensor:
        return numbers.round_()


def _scales(blocks: Tensor) -> Tensor:
    """Rounded up, so that no number is beyond 127 of them: cutting it off would be a bias."""
    if not blocks.numel():
        return torch.empty(0, dtype=torch.float32, device=blocks.device)
    scales = (blocks.abs().amax(1) / LARGEST).float()
    upwards = torch.full_like(scales, torch.inf)
    return torch.where(scales > 0, torch.nextafter(scales, upwards), scales)


@dataclass(frozen=True, slots=True)
class StochasticInt8(Int8):
    """The dice depend on the seed and on which message it is, so that a replay rolls the same."""

    seed: int = 0

    def _rounded(self, numbers: Tensor, nonce: int) -> Tensor:
        dice = torch.Generator(numbers.device).manual_seed(draw_u64(self.seed, nonce) >> 1)
        noise = torch.rand(numbers.shape, generator=dice, dtype=numbers.dtype, device=numbers.device)
        return numbers.add_(noise).floor_()
