"""Codecs: a vector becomes bytes of a known size and back.

A coder is pure: equal input gives equal bytes, on every worker. Values that it cannot
represent (NaN, infinity, a block that holds one) are decoded as NaN or infinity, or
raise; they are never decoded as an ordinary number.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core.clock import Clock
from paceline.core.errors import TrainingError
from paceline.core.ids import Rank
from paceline.plan.plan import Codec, Compression
from paceline.sync.rng import draw_u64
from paceline.transport.ports import Traffic

BLOCK = 256  # elements that share one scale, unless a coder sets another number


class Coder(Protocol):
    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """The exact size of what `encode` makes of a vector of this length and type."""
        ...

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        """The vector as bytes (uint8). `nonce` identifies the message, and seeds random rounding."""
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


@dataclass(frozen=True, slots=True)
class Cast:
    short: torch.dtype

    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return numel * self.short.itemsize

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        largest = _largest(vector)
        limit = torch.finfo(self.short).max
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


# Rounded to the nearest it is off by at most half a scale; together with an
# error memory nothing is lost for good. Rounded at random, up or down in
# proportion to nearness, it is right on average: E[decode(encode(x))] = x.

INT8_MAX = 127
INT8_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Int8:
    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return numel + INT8_SCALE_BYTES * num_blocks(numel)

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        blocks = in_blocks(vector)
        scales = _scales(blocks)
        divisors = torch.where(scales.isfinite() & (scales > 0), scales, 1.0).to(vector.dtype)
        # NaN has no byte; its block's scale is NaN or infinite, and makes it NaN again.
        codes = self._rounded(blocks / divisors[:, None], nonce).nan_to_num_(0.0).clamp_(-INT8_MAX, INT8_MAX)
        return torch.cat([as_bytes(scales), as_bytes(codes.to(torch.int8).view(-1)[: vector.numel()])])

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        split = INT8_SCALE_BYTES * num_blocks(numel)
        scales = from_bytes(payload[:split], torch.float32).to(dtype)
        blocks = in_blocks(payload[split:].view(torch.int8).to(dtype))
        return blocks.mul_(scales[:, None]).view(-1)[:numel]

    def _rounded(self, numbers: Tensor, nonce: int) -> Tensor:
        return numbers.round_()


def _scales(blocks: Tensor) -> Tensor:
    """Rounded up, so that no number is beyond 127 of them: cutting it off would be a bias."""
    if not blocks.numel():
        return torch.empty(0, dtype=torch.float32, device=blocks.device)
    scales = (blocks.abs().amax(1) / INT8_MAX).float()
    upwards = torch.full_like(scales, torch.inf)
    return torch.where(scales > 0, torch.nextafter(scales, upwards), scales)


@dataclass(frozen=True, slots=True)
class StochasticInt8(Int8):
    """Random numbers depend on the seed and the message only, so that a replay draws the same."""

    seed: int = 0

    def _rounded(self, numbers: Tensor, nonce: int) -> Tensor:
        generator = torch.Generator(numbers.device).manual_seed(draw_u64(self.seed, nonce) >> 1)
        noise = torch.rand(numbers.shape, generator=generator, dtype=numbers.dtype, device=numbers.device)
        return numbers.add_(noise).floor_()


# Alone it does not converge even on some convex problems; with an error memory
# it does (Karimireddy 2019, arXiv 1901.09847). Blocks are small, because a large
# magnitude would drown the small ones it shares a block with; so that they stay
# cheap, a magnitude travels as bfloat16: it has the range of float32, and what
# the rounding leaves out the memory makes up for like everything else.

SIGN_SCALE = torch.bfloat16
SIGN_SCALE_BYTES = 2
SIGN_BLOCK = 320  # numbers that share a magnitude; its 16 bits then add a twentieth to theirs


@dataclass(frozen=True, slots=True)
class Sign:
    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return -(-numel // 8) + SIGN_SCALE_BYTES * num_blocks(numel, SIGN_BLOCK)

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        sums = in_blocks(vector.abs(), SIGN_BLOCK).sum(1)
        if sums.numel():  # the last block may hold fewer numbers than the others
            sums[:-1] /= SIGN_BLOCK
            sums[-1] /= (vector.numel() - 1) % SIGN_BLOCK + 1
        return torch.cat([as_bytes(sums.to(SIGN_SCALE)), _packed(vector >= 0)])

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        split = SIGN_SCALE_BYTES * num_blocks(numel, SIGN_BLOCK)
        scales = from_bytes(payload[:split], SIGN_SCALE).to(dtype)
        signs = _unpacked(payload[split:], numel).to(dtype).mul_(2).sub_(1)
        return in_blocks(signs, SIGN_BLOCK).mul_(scales[:, None]).view(-1)[:numel]


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


# Values travel in the vector's own type, so that sending all of them changes no
# bit. NaN counts as the largest, so it is sent and not hidden.

INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class TopK:
    part: float  # of the numbers, more than 0 and at most 1

    def count(self, numel: int) -> int:
        """At least one; a product such as 0.1 · 30 must not round up to 4."""
        return min(numel, max(1, math.ceil(self.part * numel - 1e-9)))

    def payload_bytes(self, numel: int, dtype: torch.dtype) -> int:
        return self.count(numel) * (INDEX_BYTES + dtype.itemsize)

    def encode(self, vector: Tensor, nonce: int = 0) -> Tensor:
        assert vector.numel() < 2**31, "a place is 4 bytes"
        places = torch.topk(vector.abs(), self.count(vector.numel()), sorted=False).indices
        return torch.cat([as_bytes(places.to(torch.int32)), as_bytes(vector[places])])

    def decode(self, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        decoded = torch.zeros(numel, dtype=dtype, device=payload.device)
        self.add_to(decoded, payload)
        return decoded

    def add_to(self, total: Tensor, payload: Tensor) -> None:
        places = self.places(payload, total.dtype)
        values = from_bytes(payload[INDEX_BYTES * places.numel() :], total.dtype)
        total.index_add_(0, places, values)

    def places(self, payload: Tensor, dtype: torch.dtype) -> Tensor:
        count = payload.numel() // (INDEX_BYTES + dtype.itemsize)
        return from_bytes(payload[: INDEX_BYTES * count], torch.int32).long()


def coder_of(compress: Compression, *, seed: int, rank: Rank) -> Coder:
    match compress.codec:
        case Codec.FP32:
            return Cast(torch.float32)
        case Codec.FP16:
            return Cast(torch.float16)
        case Codec.BF16:
            return Cast(torch.bfloat16)
        case Codec.INT8:
            # Without error feedback, rounding must be unbiased.
            return Int8() if compress.error_feedback else StochasticInt8(seed=draw_u64(seed, rank))
        case Codec.SIGN:
            return Sign()
        case Codec.TOPK:
            assert compress.amount is not None, "the plan sets the fraction of topk"
            return TopK(compress.amount)
        case Codec.DGC | Codec.POWERSGD:
            raise AssertionError(f"{compress.codec} is not a single payload")


class Stopwatch:
    """`with watch:` around encoding and decoding; `traffic()` returns the sum and resets it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent_ns = 0
        self._started_ns = 0

    def __enter__(self) -> None:
        self._started_ns = self._clock.now_ns()

    def __exit__(self, *_: object) -> None:
        self._spent_ns += self._clock.now_ns() - self._started_ns

    def traffic(self) -> Traffic:
        spent_ns = self._spent_ns
        self._spent_ns = 0
        return Traffic(codec_ns=spent_ns)
