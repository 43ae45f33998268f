"""Llama model: RMS norms, rotary positions, grouped-query attention, gated feed-forward networks.

Llama 2 and 3 and Mistral are this with other numbers (tasks/llama/shapes.py). The
three projections of attention, and the two that open the gated network, are
one matrix each: a GPU does one large product sooner than several small ones.
Hugging Face's names and layout are in tasks/llama/weights.py.

Called with the tokens that follow, the model returns the mean loss and never
holds all scores (tasks/llama_loss.py): with 128 thousand words they would be by far
the largest thing in memory. On a GPU the layers are compiled. What a layer keeps
for backward may be computed again instead (tasks/llama_memory.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import paceline.tasks.llama.attention
import paceline.tasks.llama.feed_forward  # noqa: F401 - they give torch the operations that are named below
from paceline.tasks.llama.attention import causal_attention
from paceline.tasks.llama.experts import Experts
from paceline.tasks.llama.feed_forward import gated_network
from paceline.tasks.llama.loss import mean_loss
from paceline.tasks.llama.ops import TiedGradient, add_product, embed_tokens
from paceline.tasks.llama.shapes import LlamaShape, RopeScaling

# all        everything: no step is faster while it fits
# products   what matrix products and attention gave; norms, turns and gates are computed again (`selective`)
# inputs     only what came in: the whole layer is computed again, a third more work (`full`)


class RecomputePolicy(StrEnum):
    """Named as `--activation-checkpointing` names them."""

    ALL = "none"
    PRODUCTS = "selective"
    INPUTS = "full"


_EXPENSIVE_OPS = (
    "mm",
    "addmm",
    "bmm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_PRODUCTS = frozenset(
    [getattr(torch.ops.aten, name).default for name in _EXPENSIVE_OPS if hasattr(torch.ops.aten, name)]
    + [torch.ops.paceline.flash.default, torch.ops.paceline.network.default]
)


def checkpointed(keeps: RecomputePolicy, compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What `compute` makes of the inputs; for a backward of it, no more is kept than said."""
    if keeps is RecomputePolicy.ALL or not torch.is_grad_enabled():
        return compute(*inputs)
    more: dict[str, Any] = {}  # Any: torch's own options
    if keeps is RecomputePolicy.PRODUCTS:
        more["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    # A layer draws no random numbers, so there is no generator to set back.
    output: Tensor = checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False, **more)
    return output


def _policy(_context: object, operation: object, *_args: object, **_more: object) -> CheckpointPolicy:
    is_dear = operation in _PRODUCTS
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE


def window_attention(window: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(batch, place, head, number), as in tasks/llama/attention.py; a token is one of its own window."""
    places = torch.arange(query.shape[-3], device=query.device)
    back = places.unsqueeze(-1) - places
    seen = (back >= 0) & (back < window)
    shares = query.shape[-2] != key.shape[-2]
    query, key, value = (part.transpose(-2, -3) for part in (query, key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, seen, enable_gqa=shares)
    return mixed.transpose(-2, -3)


INIT_STD = 0.02
_Part = TypeVar("_Part", nn.Linear, nn.Embedding)
# In this order, where they can: cuDNN's is the fastest on Hopper.
ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class Llama(nn.Module):
    """Tokens in; out come scores, or the mean loss when the tokens that follow are given."""

    def __init__(
        self, shape: LlamaShape, *, compiled: bool = True, keeps: RecomputePolicy = RecomputePolicy.ALL
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = unfilled(nn.Embedding, shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape, keeps) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.head = unfilled(nn.Linear, shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight
        for part in self.modules():
            if isinstance(part, nn.Embedding) or (isinstance(part, nn.Linear) and not self._is_tied(part)):
                nn.init.normal_(part.weight, std=INIT_STD)
        self._is_compiled = compiled
        self._whole: Callable[[Tensor, Tensor], Tensor] | None = None

    def _is_tied(self, part: nn.Linear) -> bool:
        return part.weight is self.embedding.weight

    def forward(self, tokens: Tensor, following: Tensor | None = None) -> Tensor:
        owed = self._owed() if following is not None else None
        stream = embed_tokens(self.embedding.weight, tokens, owed)
        turns = rotary_table(self.shape, tokens.shape[-1], stream.device)
        with sdpa_kernel(ATTENTION, set_priority=True):
            stream = self.norm(self._through(stream, turns))
        if following is None:
            scores: Tensor = self.head(stream)
            return scores
        return mean_loss(stream.flatten(0, -2), self.head.weight, following.flatten(), owed=owed)

    def _owed(self) -> TiedGradient | None:
        """One table, one gradient: the loss leaves its part to the look-up. On a CPU torch adds them up."""
        return TiedGradient() if self.shape.tied and self.embedding.weight.is_cuda else None

    def _through(self, stream: Tensor, turns: Tensor) -> Tensor:
        # Evaluations have samples of other shapes: compiling for them would take longer than they do.
        is_compiled = self._is_compiled and stream.is_cuda and torch.is_grad_enabled()
        if is_compiled and not isinstance(self.layers[0], FSDPModule):
            if self._whole is None:
                self._whole = torch.compile(self._layer_by_layer, fullgraph=True, dynamic=False)
            return self._whole(stream, turns)
        return self._layer_by_layer(stream, turns, is_compiled=is_compiled)

    def _layer_by_layer(self, stream: Tensor, turns: Tensor, *, is_compiled: bool = False) -> Tensor:
        given = Unrounded(turns) if isinstance(self.layers[0], FSDPModule) else turns
        for layer in self.layers:
            stream = layer(stream, given, is_compiled=is_compiled)
        return stream


@dataclass(frozen=True, slots=True)
class Unrounded:
    """A split model that computes in bf16 turns every tensor that a layer is given into that: not this."""

    turns: Tensor


class Layer(nn.Module):
    def __init__(self, shape: LlamaShape, keeps: RecomputePolicy = RecomputePolicy.ALL) -> None:
        super().__init__()
        self._keeps = keeps
        self.before_attention = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.before_network = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.network = Experts(shape) if shape.experts else GatedNetwork(shape.width, shape.inner)
        self._compiled: Callable[[Tensor, Tensor], Tensor] | None = None

    def forward(self, stream: Tensor, given: Tensor | Unrounded, *, is_compiled: bool = False) -> Tensor:
        turns = given.turns if isinstance(given, Unrounded) else given
        if not is_compiled:
            return self._remembering(stream, turns)
        # A model that is split gathers a layer when it is called, into which no compiler should look.
        if self._compiled is None:
            self._compiled = torch.compile(self._remembering, fullgraph=True, dynamic=False)
        return self._compiled(stream, turns)

    def _remembering(self, stream: Tensor, turns: Tensor) -> Tensor:
        return checkpointed(self._keeps, self._computed, stream, turns)

    def _computed(self, stream: Tensor, turns: Tensor) -> Tensor:
        stream = self.attention(self.before_attention(stream), turns, stream)
        output: Tensor = self.network(self.before_network(stream), stream)
        return output


class Attention(nn.Module):
    """Several query heads share one head of keys and values."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self._heads = shape.heads
        self._shared = shape.shared_heads
        self._size = shape.head_size
        self._window = shape.window
        outputs = (shape.heads + 2 * shape.shared_heads) * shape.head_size
        self.query_key_value = unfilled(nn.Linear, shape.width, outputs, bias=False)
        self.out = unfilled(nn.Linear, shape.heads * shape.head_size, shape.width, bias=False)

    def forward(self, stream: Tensor, turns: Tensor, to: Tensor) -> Tensor:
        """Added to `to`."""
        all_heads = self.query_key_value(stream).unflatten(-1, (-1, self._size))
        query, key, value = all_heads.split((self._heads, self._shared, self._shared), dim=-2)
        heads = turned(query, turns), turned(key, turns), value
        is_windowed = 0 < self._window < stream.shape[-2]
        mixed = window_attention(self._window, *heads) if is_windowed else causal_attention(*heads)
        return add_product(to, mixed.flatten(-2), self.out.weight)


class GatedNetwork(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up_pairs = unfilled(nn.Linear, width, 2 * inner, bias=False)
        self.down = unfilled(nn.Linear, inner, width, bias=False)

    def forward(self, stream: Tensor, to: Tensor) -> Tensor:
        """Added to `to`."""
        return gated_network(stream, self.gate_up_pairs.weight, self.down.weight, to)


def unfilled(kind: type[_Part], *sizes: int, **more: bool) -> _Part:
    """A part without torch's own first numbers: ours follow, and drawing billions twice takes minutes."""
    module: _Part = nn.utils.skip_init(kind, *sizes, **more)  # type: ignore[no-untyped-call]  # torch's own
    return module


def turned(heads: Tensor, turns: Tensor) -> Tensor:
    """Each pair (i, i + half) of a head's numbers, turned by the angle of its place; at least in float32."""
    first, second = heads.to(torch.promote_types(heads.dtype, turns.dtype)).chunk(2, dim=-1)
    cosine = turns[:, 0].unsqueeze(-2)
    sine = turns[:, 1].unsqueeze(-2)
    both = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return both.to(heads.dtype)


@cache  # it follows from the shape: no part of the model's state, and exact whatever the model's type is
def rotary_table(shape: LlamaShape, length: int, device: torch.device) -> Tensor:
    """Cosine and sine for each place and pair: (length, 2, half a head)."""
    half = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
    speeds = shape.rope_base**-half
    if shape.rope_scaling is not None:
        speeds = _stretched(speeds, shape.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), speeds)
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(device, torch.float32)


def _stretched(speeds: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's: slow pairs are slowed by `factor`, fast ones stay, those between are mixed."""
    lengths = 2 * math.pi / speeds
    share = (scaling.original_places / lengths - scaling.low) / (scaling.high - scaling.low)
    share = share.clamp(0.0, 1.0)
    return (1 - share) * speeds / scaling.factor + share * speeds
