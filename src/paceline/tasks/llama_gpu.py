"""Whose kernels may a Llama use on this GPU? Those of `pip install 'paceline[flash]'`, where they know it.

Asked while a model is compiled, so the answers are constants to a compiler: no GPU changes its kind.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

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
