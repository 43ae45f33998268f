"""Gated feed-forward network: `to + (silu(gate) * up) @ down`, fused where the GPU can.

A gate's row is followed by its up's row in one matrix, so both come out of a product side by side. On a
Hopper GPU with `pip install 'paceline[flash]'` the gate is then part of the product itself (quack's
kernels): it is computed while the numbers are still in registers, forward and backward, and what goes into
the last product is not kept but computed again from there. Elsewhere it is a pass of its own
(tasks/llama/ops.py).

A compiler does not look into it: it is one operation, with another for its backward.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.tasks.llama.ops import add_product, can_quack, gated

if TYPE_CHECKING:
    from quack.gemm_config import GemmConfig

MULTIPLE = 16  # sizes that quack's kernels take: a row's beginning must lie at a multiple of 16 bytes


def pair_rows(gate: Tensor, up: Tensor) -> Tensor:
    """One matrix of both: a row of the one, a row of the other."""
    return torch.stack((gate, up), dim=-2).flatten(-3, -2)


def split_pairs(pairs: Tensor) -> tuple[Tensor, Tensor]:
    return pairs[..., ::2, :], pairs[..., 1::2, :]


def gated_network(stream: Tensor, pairs: Tensor, down: Tensor, to: Tensor) -> Tensor:
    """Added to `to`."""
    if can_quack(stream) and not (stream.shape[-1] % MULTIPLE or down.shape[-1] % MULTIPLE):
        output: Tensor = _network(stream, pairs, down, to)[0]
        return output
    return add_product(to, gated(functional.linear(stream, pairs)), down)


@torch.library.custom_op("paceline::network", mutates_args=())
def _network(stream: Tensor, pairs: Tensor, down: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
    """Beside what was asked for, the gates and ups themselves, for backward."""
    from quack.gemm_interface import gemm_gated

    both, inner = gemm_gated(stream.flatten(0, -2), pairs.T, activation="swiglu", config=_tiles(192))
    return add_product(to, inner.view(*to.shape[:-1], -1), down), both


@_network.register_fake
def _(_stream: Tensor, pairs: Tensor, _down: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
    return to.new_empty(to.shape), to.new_empty((to.shape[:-1].numel(), len(pairs)))


@torch.library.custom_op("paceline::network_backward", mutates_args=())
def _network_backward(
    gradient: Tensor, stream: Tensor, pairs: Tensor, down: Tensor, both: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from quack.gemm_interface import gemm_dgated

    given = gradient.flatten(0, -2)
    to_both, inner = gemm_dgated(
        given, down, both, activation="swiglu", dynamic_scheduler=False, config=_tiles(128)
    )
    to_stream = (to_both @ pairs).view_as(stream)
    return to_stream, to_both.T @ stream.flatten(0, -2), given.T @ inner


@_network_backward.register_fake
def _(
    _gradient: Tensor, stream: Tensor, pairs: Tensor, down: Tensor, _both: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return stream.new_empty(stream.shape), pairs.new_empty(pairs.shape), down.new_empty(down.shape)


@cache  # quack tells settings apart by who they are, so it must be the same object every time
def _tiles(columns: int) -> "GemmConfig":
    """How a product is cut, as it was best on an H200. To let quack try all would delay each start."""
    from quack.gemm_config import GemmConfig

    return GemmConfig(
        tile_m=128,
        tile_n=columns,
        pingpong=True,
        cluster_m=1,
        cluster_n=2,
        is_dynamic_persistent=False,
    )


def _remember(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]
) -> None:  # Any: torch's own shape
    ctx.save_for_backward(*inputs[:3], output[1])


def _backward(
    ctx: Any, gradient: Tensor, _to_both: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # Any: torch's shape
    return *_network_backward(gradient.contiguous(), *ctx.saved_tensors), gradient


_network.register_autograd(_backward, setup_context=_remember)
