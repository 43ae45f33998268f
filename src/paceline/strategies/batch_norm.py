"""Batch normalisation over the samples of all workers (`--sync-batchnorm`).

A `BatchNorm` layer of one process normalises over that process's samples. A
synchronized layer adds one reduction to its forward pass (sums, square sums and
the number of values) and one to its backward pass (the two sums of gradients
that the statistics depend on). Its output, its gradients and its running
statistics are then those of one process with the whole batch, up to rounding.

Every rank makes the same forward and backward passes at every step, so that the
reductions match. In eval mode there are none. Sums are reduced in float64: the
variance is a difference of sums, which float32 would round away.

The layers stay the same objects with the same parameters, buffers and names;
only their class changes. See docs/concepts/equal-work.md.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.plan.catalog import MODES
from paceline.plan.plan import Plan
from paceline.transport.ports import NO_TRAFFIC, Collective, Traffic

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronize_batch_norm(model: nn.Module, collective: Collective) -> "SharedSums":
    """Make the model's BatchNorm layers normalise over all ranks.

    Every rank makes this call with the same model. A subclass with its own forward pass is left
    unchanged, since its computation is not known.
    """
    sums = SharedSums(collective)
    if collective.world_size == 1:
        return sums
    for layer in model.modules():
        if normalises_own_batch(layer) and type(layer).forward is _BatchNorm.forward:
            layer.__class__ = type(type(layer).__name__, (_Synchronized, type(layer)), {})
            assert isinstance(layer, _Synchronized), "its class is one now"
            sums.reserve(layer.num_features)
            layer.shared_sums = sums
    return sums


def normalises_own_batch(layer: nn.Module) -> bool:
    """Whether the layer's output depends on the other samples of this worker's batch, and on no more."""
    return isinstance(layer, _KINDS) and not isinstance(layer, _Synchronized)


class SharedSums:
    """Reduces the sums of all synchronized layers of one model, and counts the bytes."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._vectors: dict[int, Tensor] = {}  # by their length; layers of one width use the same one
        self._traffic = NO_TRAFFIC

    def reserve(self, num_features: int) -> None:
        """Allocate before training: every rank must allocate in the same order."""
        numel = 2 * num_features + 1
        if numel not in self._vectors:
            self._vectors[numel] = self._collective.allocate(numel, torch.float64)

    def reduce(self, first: Tensor, second: Tensor, number: float) -> tuple[Tensor, Tensor, Tensor]:
        """The sums over all ranks, in float64 on the device of `first`."""
        width = first.numel()
        vector = self._vectors[2 * width + 1]
        vector[:width] = first
        vector[width:-1] = second
        vector[-1] = number
        # Workers that take turns in one process share a generator, and the others draw from it meanwhile.
        with torch.random.fork_rng(devices=[]):
            moved = self._collective.all_reduce_mean(vector)
        # Waiting here is a part of the forward and backward times.
        self._traffic += Traffic(moved.bytes_out, moved.bytes_in)
        total = (vector * self._collective.world_size).to(first.device)
        return total[:width], total[width:-1], total[-1]

    def take_traffic(self) -> Traffic:
        """Traffic since the last call."""
        moved = self._traffic
        self._traffic = NO_TRAFFIC
        return moved

    def __deepcopy__(self, memo: object) -> Self:
        """A copy of a model reduces over the same ranks."""
        return self


class _Synchronized(_BatchNorm):
    shared_sums: SharedSums

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        output, mean, variance = _normalise(input, self.weight, self.bias, self.eps, self.shared_sums)
        if self.track_running_stats:
            self._track(mean, variance)
        return output

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None, "the layer tracks statistics"
        assert self.running_var is not None, "the layer tracks statistics"
        assert self.num_batches_tracked is not None, "the layer tracks statistics"
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)


def _normalise(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, sums: SharedSums
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised values, the mean, and the unbiased variance of all ranks' values."""
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Normalise.apply
    return apply(values, weight, bias, eps, sums)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, sums: SharedSums
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs = _computed(values)
        own_variance, own_mean = torch.var_mean(inputs, _dims(inputs), correction=0)
        own_number = inputs.numel() // inputs.shape[1]
        own_mean = own_mean.double()
        squares = own_variance.double() + own_mean.square()
        total, total_squares, number = sums.reduce(own_mean * own_number, squares * own_number, own_number)
        mean = total / number
        variance = (total_squares / number - mean.square()).clamp_(min=0)
        scale = (variance + eps).rsqrt().to(inputs.dtype)
        normal = (inputs - _wide(mean.to(inputs.dtype), inputs)) * _wide(scale, inputs)
        ctx.save_for_backward(normal, scale, weight)
        ctx.sums = sums
        ctx.number = number
        ctx.has_bias = bias is not None
        output = normal if weight is None else normal * _wide(weight, inputs)
        if bias is not None:
            output = output + _wide(bias, inputs)
        unbiased = variance * (number / (number - 1).clamp(min=1))
        ctx.mark_non_differentiable(mean, unbiased)
        return output.to(values.dtype), mean, unbiased

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normal, scale, weight = ctx.saved_tensors
        gradient = gradients[0].to(normal.dtype)
        of_bias = gradient.sum(_dims(gradient))
        of_weight = (gradient * normal).sum(_dims(gradient))
        of_values = None
        if ctx.needs_input_grad[0]:
            total, total_normal, _ = ctx.sums.reduce(of_bias, of_weight, 0.0)
            shift = _wide((total / ctx.number).to(normal.dtype), normal)
            stretch = _wide((total_normal / ctx.number).to(normal.dtype), normal)
            factor = scale if weight is None else scale * weight
            of_values = (gradient - shift - normal * stretch) * _wide(factor, normal)
            of_values = of_values.to(gradients[0].dtype)
        return (
            of_values,
            None if weight is None else of_weight.to(weight.dtype),
            of_bias if ctx.has_bias else None,
            None,
            None,
        )


def _computed(values: Tensor) -> Tensor:
    """Half precision is normalised in float32, as torch does it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _dims(values: Tensor) -> list[int]:
    """All but the channels."""
    return [dim for dim in range(values.dim()) if dim != 1]


def _wide(per_channel: Tensor, values: Tensor) -> Tensor:
    return per_channel.view(1, -1, *[1] * (values.dim() - 2))


def batch_norm_remark(plan: Plan, model: nn.Module) -> str | None:
    """Remark on the effect of the number of workers on this model, after the strategy prepared it."""
    if not any(normalises_own_batch(layer) for layer in model.modules()):
        return None
    text = (
        "the model has BatchNorm: each worker normalises over its own samples, so the result depends on "
        "the number of workers"
    )
    if plan.strategy.sync_batchnorm:
        text += "; --sync-batchnorm leaves layers with a forward pass of their own as they are"
    elif plan.mode in MODES and MODES[plan.mode].reads("sync_batchnorm"):
        text += "; --sync-batchnorm normalises over those of all workers"
    else:
        modes = " and ".join(name for name, mode in MODES.items() if mode.reads("sync_batchnorm"))
        text += f"; {modes} have --sync-batchnorm, which normalises over those of all workers"
    return f"{text} (docs/concepts/equal-work.md, batch normalisation)"
