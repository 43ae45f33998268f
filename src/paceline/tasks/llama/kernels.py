"""The three kernels of a Llama on a GPU, in Triton. Only imported where tensors are on one.

Each is a pass over memory that could not be shorter: what it computes costs
nothing beside reading and writing the numbers. tasks/llama/ops.py and
tasks/llama/loss.py have the same in plain torch; `python -m benchmarks.gpu_llama`
compares them before it measures anything.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 2048  # of a row of the gated network that one program does
_WORDS = 16_384  # of a row of scores that are read at once


@triton.jit
def _scores_to_gradient(  # type: ignore[no-untyped-def]  # Triton's own language
    scores, following, losses, share, vocabulary, stride, block_size: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_scores = scores + row * stride
    right = tl.load(following + row)
    right_score = tl.load(row_scores + right).to(tl.float32)
    at = tl.arange(0, block_size)
    top = -float("inf")
    total = 0.0
    for first in range(0, vocabulary, block_size):
        block = tl.load(row_scores + first + at, mask=first + at < vocabulary, other=-float("inf")).to(
            tl.float32
        )
        higher = tl.maximum(top, tl.max(block, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(block - higher), 0)
        top = higher
    log_sum = top + tl.log(total)
    tl.store(losses + row, log_sum - right_score)
    # The row was just read: now it mostly comes out of the cache.
    for first in range(0, vocabulary, block_size):
        inside = first + at < vocabulary
        block = tl.load(row_scores + first + at, mask=inside, other=0.0).to(tl.float32)
        gradient = (tl.exp(block - log_sum) - tl.where(first + at == right, 1.0, 0.0)) * share
        tl.store(row_scores + first + at, gradient.to(scores.dtype.element_ty), mask=inside)


def scores_to_gradient(scores: Tensor, following: Tensor, share: float) -> Tensor:
    """The scores become the gradient of `share` times their losses; returned is the sum of the losses."""
    losses = torch.empty(len(scores), dtype=torch.float32, device=scores.device)
    vocabulary = scores.shape[1]
    block = min(_WORDS, triton.next_power_of_2(vocabulary))
    _scores_to_gradient[(len(scores),)](
        scores, following, losses, share, vocabulary, scores.stride(0), block_size=block, num_warps=32
    )
    return losses.sum()


@triton.jit
def _gated(both, out, inner, block_size: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's own language
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * block_size
    at = first + tl.arange(0, block_size)
    pairs_at = 2 * first + tl.arange(0, 2 * block_size)
    pairs = tl.load(both + row * 2 * inner + pairs_at, mask=pairs_at < 2 * inner, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(pairs, (block_size, 2)))
    tl.store(out + row * inner + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=at < inner)


@triton.jit
def _gated_backward(both, gradient, to_both, inner, block_size: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * block_size
    at = first + tl.arange(0, block_size)
    pairs_at = 2 * first + tl.arange(0, 2 * block_size)
    inside = pairs_at < 2 * inner
    pairs = tl.load(both + row * 2 * inner + pairs_at, mask=inside, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(pairs, (block_size, 2)))
    given = tl.load(gradient + row * inner + at, mask=at < inner, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    to_pairs = tl.join(given * up * share * (1 + gate * (1 - share)), given * gate * share)
    to_pairs = tl.reshape(to_pairs, (2 * block_size,)).to(to_both.dtype.element_ty)
    tl.store(to_both + row * 2 * inner + pairs_at, to_pairs, mask=inside)


@torch.library.triton_op("paceline::gated", mutates_args={})
def gated(both: Tensor) -> Tensor:
    inner = both.shape[-1] // 2
    out = torch.empty(*both.shape[:-1], inner, dtype=both.dtype, device=both.device)
    grid = (out.numel() // inner, triton.cdiv(inner, _COLUMNS))
    torch.library.wrap_triton(_gated)[grid](both, out, inner, block_size=_COLUMNS)
    return out


@torch.library.triton_op("paceline::gated_backward", mutates_args={})
def _gated_gradient(both: Tensor, gradient: Tensor) -> Tensor:
    inner = both.shape[-1] // 2
    to_both = torch.empty_like(both)
    grid = (gradient.numel() // inner, triton.cdiv(inner, _COLUMNS))
    torch.library.wrap_triton(_gated_backward)[grid](both, gradient, to_both, inner, block_size=_COLUMNS)
    return to_both


def _remember(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001 - torch names it
    ctx.save_for_backward(inputs[0])


def _backward(ctx: Any, gradient: Tensor) -> Tensor:  # Any: torch's own shape
    to_both: Tensor = _gated_gradient(ctx.saved_tensors[0], gradient.contiguous())
    return to_both


gated.register_autograd(_backward, setup_context=_remember)


@triton.jit
def _scale(numbers, factor, count, block_size: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's own language
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        at = tl.program_id(0).to(tl.int64) * block_size + tl.arange(0, block_size)
        value = tl.load(numbers + at, mask=at < count).to(tl.float32) * by
        tl.store(numbers + at, value.to(numbers.dtype.element_ty), mask=at < count)


def scale_unless_one(numbers: Tensor, factor: Tensor) -> None:
    """In place. Where the factor is 1, nothing is read or written."""
    count = numbers.numel()
    _scale[(triton.cdiv(count, 8192),)](numbers, factor, count, block_size=8192)
