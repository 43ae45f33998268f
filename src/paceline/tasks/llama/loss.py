"""Cross entropy in pieces: loss and gradient without ever holding all scores.

The scores of 16 thousand tokens over 128 thousand words are 8 GB in float32, and
their gradient as much again. But the gradient of a token's scores follows from
its own scores alone. So each piece of the tokens is scored, turned into its
gradient in place, multiplied back onto the two inputs, and forgotten. Nothing is
computed twice: backward only scales what is there.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.tasks.llama.ops import TiedGradient, can_quack, scale_in_place

TOKENS_AT_ONCE = 16_384
VALIDATED_AT_ONCE = 2048  # here nothing is done in place: scores are held three times


def mean_loss(
    stream: Tensor,
    weight: Tensor,
    following: Tensor,
    at_once: int = TOKENS_AT_ONCE,
    owed: TiedGradient | None = None,
) -> Tensor:
    """Cross-entropy of `stream @ weight.T` against the tokens that follow, as a mean over them.

    With `owed` the weight's gradient is left there, for the look-up of the same table.
    """
    if not torch.is_grad_enabled():
        return _only_loss(stream, weight, following, at_once)
    loss: Tensor = _InPieces.apply(stream, weight, following, at_once, owed)  # type: ignore[no-untyped-call]  # torch's
    return loss


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # Any: torch's own shape
        stream: Tensor,
        weight: Tensor,
        following: Tensor,
        at_once: int,
        owed: TiedGradient | None,
    ) -> Tensor:
        in_pieces = _by_quack if _quack_can(stream, weight, at_once) else _by_torch
        total, to_stream, to_weight = in_pieces(stream, weight, following, at_once)
        ctx.save_for_backward(to_stream, to_weight)
        ctx.owed = owed
        return total / len(stream)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # Any: torch's own shape
        to_stream, to_weight = (scale_in_place(tensor, gradients[0]) for tensor in ctx.saved_tensors)
        if ctx.owed is None:
            return to_stream, to_weight, None, None, None
        ctx.owed.gradient = to_weight
        return to_stream, None, None, None, None


def _by_torch(
    stream: Tensor, weight: Tensor, following: Tensor, at_once: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the losses, and the gradients of their mean."""
    to_stream = torch.empty_like(stream)
    to_weight = torch.empty_like(weight)
    total = torch.zeros((), dtype=_exact(stream), device=stream.device)
    for first in range(0, len(stream), at_once):
        piece = slice(first, first + at_once)
        scores = stream[piece] @ weight.T
        total += _becomes_gradient(scores, following[piece], 1 / len(stream))
        torch.mm(scores, weight, out=to_stream[piece])
        torch.addmm(to_weight, scores.T, stream[piece], beta=1.0 if first else 0.0, out=to_weight)
    return total, to_stream, to_weight


def _quack_can(stream: Tensor, weight: Tensor, at_once: int) -> bool:
    if not can_quack(stream):
        return False
    from quack.linear_cross_entropy import scaled_exp_lce_supported

    return bool(scaled_exp_lce_supported(stream, weight, at_once, "mean"))


def _by_quack(
    stream: Tensor, weight: Tensor, following: Tensor, at_once: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, with exponentials inside of the products: the pass over all scores is saved."""
    from quack.linear_cross_entropy import scaled_exp_linear_cross_entropy_fwd

    share = torch.full((), 1 / len(stream), device=stream.device)
    losses, to_stream, to_weight = scaled_exp_linear_cross_entropy_fwd(
        stream, weight, following, at_once, grad_scale=share
    )
    # It fills up to whole tiles, with rows that count nothing.
    return losses.sum(), to_stream[: len(stream)], to_weight.to(weight.dtype)


def _only_loss(stream: Tensor, weight: Tensor, following: Tensor, at_once: int) -> Tensor:
    at_once = min(at_once, VALIDATED_AT_ONCE)
    pieces = zip(torch.split(stream, at_once), torch.split(following, at_once), strict=True)
    exact = _exact(stream)
    losses = [functional.cross_entropy((p @ weight.T).to(exact), f, reduction="sum") for p, f in pieces]
    return torch.stack(losses).sum() / len(stream)


def _becomes_gradient(scores: Tensor, following: Tensor, share: float) -> Tensor:
    """The scores become the gradient of `share` times their losses; returned is the sum of the losses."""
    if scores.is_cuda:
        from paceline.tasks.llama.kernels import scores_to_gradient

        return scores_to_gradient(scores, following, share)
    exact = scores.to(_exact(scores))
    right = following.unsqueeze(-1)
    log_sum = exact.logsumexp(-1, keepdim=True)
    losses = (log_sum - exact.gather(-1, right)).sum()
    gradient = (exact - log_sum).exp_()
    gradient.scatter_add_(-1, right, torch.full_like(log_sum, -1.0))
    scores.copy_(gradient.mul_(share))
    return losses


def _exact(tensor: Tensor) -> torch.dtype:
    """bf16 scores are summed in float32."""
    return torch.promote_types(tensor.dtype, torch.float32)
