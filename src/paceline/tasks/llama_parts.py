"""Which parts of a Llama does a compiler not do well on a GPU? Four, each in plain torch elsewhere.

added        a product and a sum: one kernel instead of two
gated        silu(gate) * up: a compiler joins the two gradients by reading both twice
looked_up    the embedding: torch's own backward waits for the GPU, and the queue runs dry;
             where the table also scores (tied), its two gradients are one table, not two to be added up
scaled       multiply by a number that is nearly always 1: a GPU finds that out for itself, without waiting

The kernels are in tasks/llama_kernels.py, which needs Triton (it comes with torch for CUDA).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def added(to: Tensor, stream: Tensor, weight: Tensor) -> Tensor:
    """`to + stream @ weight.T`."""
    return torch.addmm(to.flatten(0, -2), stream.flatten(0, -2), weight.T).view_as(to)


def gated(both: Tensor) -> Tensor:
    """silu(gate) * up, of pairs in the last dimension: a gate, its up, the next gate …"""
    if both.is_cuda:
        from paceline.tasks.llama_kernels import gated as on_gpu

        found: Tensor = on_gpu(both)
        return found
    gate, up = both[..., ::2], both[..., 1::2]
    return functional.silu(gate) * up


class Owed:
    """What the loss leaves of a tied table's gradient. The look-up's turn is last: it adds its own."""

    __slots__ = ("gradient",)

    def __init__(self) -> None:
        self.gradient: Tensor | None = None


def looked_up(weight: Tensor, tokens: Tensor, owed: Owed | None = None) -> Tensor:
    """The rows of these tokens."""
    if weight.is_cuda or owed is not None:
        found: Tensor = _LookedUp.apply(weight, tokens, owed)  # type: ignore[no-untyped-call]  # torch leaves it untyped
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
    def forward(
        ctx: Any, weight: Tensor, tokens: Tensor, owed: Owed | None
    ) -> Tensor:  # Any: torch's own shape
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.owed = len(weight), owed
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # Any: torch's own shape
        (tokens,), gradient = ctx.saved_tensors, gradients[0]
        found = None if ctx.owed is None else ctx.owed.gradient
        if found is None:
            found = gradient.new_zeros(ctx.rows, gradient.shape[-1])
        else:
            ctx.owed.gradient = None
        # Sorted, so that the same gradients give the same bits; and nothing is asked of the GPU.
        found.index_put_((tokens.flatten(),), gradient.flatten(0, -2), accumulate=True)
        return found, None, None
