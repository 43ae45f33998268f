"""Codecs: every codec keeps its guarantees for any vector."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn
from torch import Tensor

from paceline.compression.codecs import (
    SIGN_BLOCK,
    SIGN_SCALE_BYTES,
    Cast,
    Coder,
    Int8,
    Sign,
    StochasticInt8,
    TopK,
    packed_by_torch,
    unpacked_by_torch,
)
from paceline.compression.error_feedback import ErrorMemory
from paceline.core.errors import TrainingError

CODERS: list[Coder] = [
    Cast(torch.float32),
    Cast(torch.float16),
    Cast(torch.bfloat16),
    Int8(),
    StochasticInt8(seed=9),
    Sign(),
    TopK(0.03),
    TopK(1.0),
]
IDS = ["fp32", "fp16", "bf16", "int8", "stochastic", "sign", "topk", "everything"]


def vectors(limit: float = 1e4) -> st.SearchStrategy[Tensor]:
    numbers = st.floats(-limit, limit, width=32, allow_subnormal=False)
    arrays = stn.arrays(np.float64, st.integers(0, 700), elements=numbers, fill=numbers)
    return st.builds(lambda array, dtype: torch.from_numpy(array).to(dtype), arrays, st.sampled_from(FLOATS))


FLOATS = [torch.float32, torch.float64]


def through(coder: Coder, vector: Tensor, nonce: int = 0) -> Tensor:
    return coder.decode(coder.encode(vector, nonce), vector.numel(), vector.dtype)


@pytest.mark.parametrize("coder", CODERS, ids=IDS)
@settings(max_examples=40, deadline=None)
@given(vector=vectors())
def test_size_length_and_type_are_as_declared_and_equal_input_gives_equal_bytes(
    coder: Coder, vector: Tensor
) -> None:
    before = vector.clone()
    payload = coder.encode(vector, 5)
    assert torch.equal(vector, before), "encoding must not change what it reads"
    assert payload.dtype is torch.uint8
    assert payload.numel() == coder.payload_bytes(vector.numel(), vector.dtype)
    assert torch.equal(payload, coder.encode(vector.clone(), 5))
    back = coder.decode(payload, vector.numel(), vector.dtype)
    assert (back.shape, back.dtype) == (vector.shape, vector.dtype)
    assert bool(torch.isfinite(back).all())


@pytest.mark.parametrize("coder", CODERS, ids=IDS)
@settings(max_examples=25, deadline=None)
@given(vector=vectors(), offset=st.integers(0, 9))
def test_a_payload_may_lie_anywhere_in_a_longer_buffer(coder: Coder, vector: Tensor, offset: int) -> None:
    payload = coder.encode(vector)
    buffer = torch.zeros(payload.numel() + 20, dtype=torch.uint8)
    buffer[offset : offset + payload.numel()] = payload
    moved = buffer[offset : offset + payload.numel()]
    assert torch.equal(coder.decode(moved, vector.numel(), vector.dtype), through(coder, vector))


@settings(max_examples=60, deadline=None)
@given(vector=vectors())
def test_int8_is_off_by_at_most_half_a_scale_of_its_block(vector: Tensor) -> None:
    off = (through(Int8(), vector) - vector).abs()
    for start in range(0, vector.numel(), 256):
        block = vector[start : start + 256]
        half = float(block.abs().max()) / 254
        assert float(off[start : start + 256].max()) <= half * (1 + 1e-5)


@settings(max_examples=60, deadline=None)
@given(vector=vectors())
def test_signs_keep_every_sign_and_each_block_its_mean_magnitude(vector: Tensor) -> None:
    back = through(Sign(), vector)
    for start in range(0, vector.numel(), SIGN_BLOCK):
        block, mine = vector[start : start + SIGN_BLOCK], back[start : start + SIGN_BLOCK]
        assert bool(((mine >= 0) == (block >= 0)).all()) or not bool(mine.any())
        assert float(mine[0].abs()) == pytest.approx(float(block.abs().mean()), rel=2**-8, abs=1e-30)
        assert len(set(mine.abs().tolist())) == 1


@settings(max_examples=60, deadline=None)
@given(vector=vectors(), part=st.floats(0.01, 1.0))
def test_topk_sends_the_largest_as_they_are_and_zeros_elsewhere(vector: Tensor, part: float) -> None:
    coder = TopK(part)
    back = through(coder, vector)
    sent = back != 0
    assert bool((back[sent] == vector[sent]).all())
    if vector.numel():
        least = torch.topk(vector.abs(), coder.count(vector.numel())).values[-1]
        assert bool((vector[vector.abs() > least] == back[vector.abs() > least]).all())


def test_a_part_of_the_numbers_is_rounded_up_but_not_by_floating_point() -> None:
    assert [TopK(0.1).count(n) for n in (0, 1, 10, 11, 30)] == [0, 1, 1, 2, 3]
    assert TopK(1.0).count(7) == 7


@pytest.mark.parametrize("coder", CODERS, ids=IDS)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 299])
def test_what_is_not_a_number_stays_visible(coder: Coder, odd: float, place: int) -> None:
    vector = torch.linspace(-1, 1, 300)
    vector[place] = odd
    assert not bool(torch.isfinite(through(coder, vector)).all())


def test_a_number_beyond_fp16_is_an_error_with_advice_and_not_infinity() -> None:
    with pytest.raises(TrainingError) as caught:
        Cast(torch.float16).encode(torch.tensor([1.0, 70_000.0]))
    assert "7e+04" in caught.value.what
    assert "bf16" in caught.value.hint


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_with_a_memory_nothing_is_lost(data: st.DataObject) -> None:
    coder = data.draw(st.sampled_from(CODERS))
    like = torch.zeros(data.draw(st.integers(1, 300)), dtype=torch.float64)
    memory, given_, sent = ErrorMemory(like), like.clone(), like.clone()
    for number in range(data.draw(st.integers(1, 12))):
        seed = data.draw(st.integers(0, 2**31))
        gradient = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)
        message = through(coder, memory.corrected(gradient), number)
        memory.sent(message)
        given_, sent = given_ + gradient, sent + message
    assert float((sent + memory.snapshot()["owed"] - given_).abs().max()) < 1e-12


def test_random_rounding_draws_differently_for_another_message_and_another_worker() -> None:
    vector = torch.linspace(-1, 1, 100)
    payloads = [StochasticInt8(seed=s).encode(vector, n).numpy().tobytes() for s in (1, 2) for n in (0, 1)]
    assert len(set(payloads)) == 4


@settings(max_examples=40, deadline=None)
@given(vector=vectors())
def test_a_gpu_packs_signs_as_a_cpu_does(vector: Tensor) -> None:
    packed = Sign().encode(vector)[SIGN_SCALE_BYTES * (-(-vector.numel() // SIGN_BLOCK)) :]
    assert torch.equal(packed_by_torch(vector >= 0), packed)
    assert torch.equal(unpacked_by_torch(packed, vector.numel()), (vector >= 0).to(torch.uint8))
