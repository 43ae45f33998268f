"""What does a layer keep for its backward, and what is computed again? Memory against time.

all        everything: no step is faster while it fits
products   what matrix products and attention gave; norms, turns and gates are computed again (`selective`)
inputs     only what came in: the whole layer is computed again, a third more work (`full`)
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import paceline.tasks.llama_attention
import paceline.tasks.llama_network  # noqa: F401 - they give torch the operations that are named below


class Keeps(StrEnum):
    """Named as `--activation-checkpointing` names them."""

    ALL = "none"
    PRODUCTS = "selective"
    INPUTS = "full"


_DEAR = (
    "mm",
    "addmm",
    "bmm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_PRODUCTS = frozenset(
    [getattr(torch.ops.aten, name).default for name in _DEAR if hasattr(torch.ops.aten, name)]
    + [torch.ops.paceline.flash.default, torch.ops.paceline.network.default]
)


def remembering(keeps: Keeps, compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What `compute` makes of the inputs; for a backward of it, no more is kept than said."""
    if keeps is Keeps.ALL or not torch.is_grad_enabled():
        return compute(*inputs)
    more: dict[str, Any] = {}  # Any: torch's own options
    if keeps is Keeps.PRODUCTS:
        more["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    # A layer draws no random numbers, so there is no generator to set back.
    found: Tensor = checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False, **more)
    return found


def _policy(_context: object, operation: object, *_args: object, **_more: object) -> CheckpointPolicy:
    is_dear = operation in _PRODUCTS
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE
