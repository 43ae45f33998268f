"""Which parts of a Llama does a compiler not do well on a GPU? Three, each in plain torch elsewhere.

gated        silu(gate) * up: a compiler joins the two gradients by reading both twice
looked_up    the embedding: torch's own backward waits for the GPU, and the queue runs dry
scaled       multiply by a number that is nearly always 1: a GPU finds that out for itself, without waiting

The kernels are in tasks/llama_kernels.py, which needs Triton (it comes with torch for CUDA).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def gated(both: Tensor) -> Tensor:
    """silu(gate) * up, of the halves of the last dimension."""
    if both.is_cuda:
        from paceline.tasks.llama_kernels import gated as on_gpu

        found: Tensor = on_gpu(both)
        return found
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up


def looked_up(weight: Tensor, tokens: Tensor) -> Tensor:
    """The rows of these tokens."""
    if weight.is_cuda:
        found: Tensor = _LookedUp.apply(weight, tokens)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return found
    return functional.embedding(tokens, weight)


def scaled(tensor: Tensor, factor: Tensor) -> Tensor:
    """In place."""
    if tensor.is_cuda:
        from paceline.tasks.llama_kernels import scale_unless_one

        scale_unless_one(tensor, factor)
        return tensor
    return tensor.mul_(factor.to(tensor.dtype))


class _LookedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:  # Any: torch's own shape
        ctx.save_for_backward(tokens)
        ctx.rows = len(weight)
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # Any: torch's own shape
        (tokens,), gradient = ctx.saved_tensors, gradients[0]
        found = gradient.new_zeros(ctx.rows, gradient.shape[-1])
        # Sorted, so that the same gradients give the same bits; and nothing is asked of the GPU.
        found.index_put_((tokens.flatten(),), gradient.flatten(0, -2), accumulate=True)
        return found, None
