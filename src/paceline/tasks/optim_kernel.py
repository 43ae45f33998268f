"""Adam's update of one large tensor on a GPU, in Triton: every number is read once and written once.

torch's own updates many tensors at a time, as small ones need it; with large ones it gets half of what the
GPU's memory could do. Only imported where tensors are on one; `python -m benchmarks.gpu_llama` compares both.
"""

import triton
import triton.language as tl
from torch import Tensor

_AT_ONCE = 2048


@triton.jit
def _adam(  # type: ignore[no-untyped-def]  # Triton's own language
    parameter,
    gradient,
    first,
    second,
    count,
    kept,
    rate,
    to_gradient,
    beta2,
    root,
    eps,
    block_size: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * block_size + tl.arange(0, block_size)
    inside = at < count
    value = tl.load(parameter + at, mask=inside).to(tl.float32)
    slope = tl.load(gradient + at, mask=inside).to(tl.float32)
    mean = tl.load(first + at, mask=inside).to(tl.float32)
    square = tl.load(second + at, mask=inside).to(tl.float32)
    mean += (slope - mean) * to_gradient
    square = square * beta2 + slope * slope * (1 - beta2)
    value = value * kept - rate * mean / (tl.sqrt_rn(square) / root + eps)
    tl.store(parameter + at, value.to(parameter.dtype.element_ty), mask=inside)
    tl.store(first + at, mean.to(first.dtype.element_ty), mask=inside)
    tl.store(second + at, square.to(second.dtype.element_ty), mask=inside)


def update(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    steps: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> None:
    """In place, for the `steps`th time; `decay` acts on the parameters (AdamW)."""
    count = parameter.numel()
    _adam[(triton.cdiv(count, _AT_ONCE),)](
        parameter,
        gradient,
        first,
        second,
        count,
        1 - lr * decay,
        lr / (1 - beta1**steps),
        1 - beta1,
        beta2,
        (1 - beta2**steps) ** 0.5,
        eps,
        block_size=_AT_ONCE,
        num_warps=8,
    )
