"""Operations of a Llama that a compiler does badly on a GPU: four, each in plain torch elsewhere.

added        a product and a sum: one kernel instead of two
gated        silu(gate) * up: a compiler joins the two gradients by reading both twice
looked_up    the embedding: torch's own backward waits for the GPU, and the queue runs dry;
             where the table also scores (tied), its two gradients are one table, not two to be added up
scaled       multiply by a number that is nearly always 1: a GPU finds that out for itself, without waiting

The kernels are in tasks/llama_kernels.py, which needs Triton (it comes with torch for CUDA).
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def add_product(to: Tensor, stream: Tensor, weight: Tensor) -> Tensor:
    """`to + stream @ weight.T`."""
    return torch.addmm(to.flatten(0, -2), stream.flatten(0, -2), weight.T).view_as(to)


def gated(both: Tensor) -> Tensor:
    """silu(gate) * up, of pairs in the last dimension: a gate, its up, the next gate …"""
    if both.is_cuda:
        from paceline.tasks.llama.kernels import gated as on_gpu

        output: Tensor = on_gpu(both)
        return output
    gate = both[..., ::2]
    up = both[..., 1::2]
    return functional.silu(gate) * up


class TiedGradient:
    """What the loss leaves of a tied table's gradient. The look-up's turn is last: it adds its own."""

    __slots__ = ("gradient",)

    def __init__(self) -> None:
        self.gradient: Tensor | None = None


def embed_tokens(weight: Tensor, tokens: Tensor, owed: TiedGradient | None = None) -> Tensor:
    """The rows of these tokens."""
    if weight.is_cuda or owed is not None:
        output: Tensor = _EmbedTokens.apply(weight, tokens, owed)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return output
    return functional.embedding(tokens, weight)


def scale_in_place(tensor: Tensor, factor: Tensor) -> Tensor:
    """In place."""
    if tensor.is_cuda:
        from paceline.tasks.llama.kernels import scale_unless_one

        scale_unless_one(tensor, factor)
        return tensor
    return tensor.mul_(factor.to(tensor.dtype))


class _EmbedTokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, tokens: Tensor, owed: TiedGradient | None
    ) -> Tensor:  # Any: torch's own shape
        ctx.save_for_backward(tokens)
        ctx.rows = len(weight)
        ctx.owed = owed
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # Any: torch's own shape
        (tokens,) = ctx.saved_tensors
        gradient = gradients[0]
        to_weight = None if ctx.owed is None else ctx.owed.gradient
        if to_weight is None:
            to_weight = gradient.new_zeros(ctx.rows, gradient.shape[-1])
        else:
            ctx.owed.gradient = None
        # Sorted, so that the same gradients give the same bits; and nothing is asked of the GPU.
        to_weight.index_put_((tokens.flatten(),), gradient.flatten(0, -2), accumulate=True)
        return to_weight, None, None


# Asked while a model is compiled, so the answers are constants to a compiler: no GPU changes its kind.

HOPPER = 9


def can_flash(tensor: Tensor) -> bool:
    """FlashAttention 4: Hopper and newer."""
    return tensor.is_cuda and tensor.dtype in (torch.bfloat16, torch.float16) and _has_flash()


def can_quack(tensor: Tensor) -> bool:
    """quack's products, with gates or exponentials in them: tried on Hopper, in bf16."""
    return tensor.is_cuda and tensor.dtype == torch.bfloat16 and _has_quack()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _has_flash() -> bool:
    is_there = find_spec("flash_attn") is not None and find_spec("flash_attn.cute") is not None
    return is_there and torch.cuda.get_device_capability()[0] >= HOPPER


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _has_quack() -> bool:
    return find_spec("quack") is not None and torch.cuda.get_device_capability()[0] == HOPPER
