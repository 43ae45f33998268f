"""Attention of a Llama: FlashAttention's kernels where installed, torch's fastest elsewhere.

`pip install 'paceline[flash]'` brings flash-attn-4, which compiles itself for the GPU when it
is first called. On an H200 its backward takes a fifth less time than cuDNN's, and the longer the samples are,
the more that is of a step. Everything else (CPUs, older GPUs, float32) goes by torch.

A compiler does not look into it: it is one operation, with another for its backward.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.tasks.llama.ops import can_flash


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(batch, place, head, number): each token looks at itself and those before; heads may share keys."""
    if can_flash(query):
        output: Tensor = _flash(query, key, value)[0]
        return output
    shares = query.shape[-2] != key.shape[-2]
    query, key, value = (part.transpose(-2, -3) for part in (query, key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shares)
    return mixed.transpose(-2, -3)


@torch.library.custom_op("paceline::flash", mutates_args=())
def _flash(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_fwd

    result = _flash_attn_fwd(query, key, value, causal=True, return_lse=True)
    return result[0], result[1]


@_flash.register_fake
def _(query: Tensor, _key: Tensor, _value: Tensor) -> tuple[Tensor, Tensor]:
    batch, places, heads, _ = query.shape
    sums = query.new_empty((batch, heads, places), dtype=torch.float32)
    return query.new_empty(query.shape), sums


@torch.library.custom_op("paceline::flash_backward", mutates_args=())
def _flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_bwd

    gradients = _flash_attn_bwd(query, key, value, out, gradient, sums, causal=True)
    return gradients[0], gradients[1], gradients[2]


@_flash_backward.register_fake
def _(
    _gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, _out: Tensor, _sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(
    ctx: Any, gradient: Tensor, _to_sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # Any: torch's shape
    gradients: tuple[Tensor, Tensor, Tensor] = _flash_backward(gradient.contiguous(), *ctx.saved_tensors)
    return gradients


_flash.register_autograd(_backward, setup_context=_remember)
