"""SGD and Adam on a list of tensors, bit for bit what torch.optim computes.

Why not torch.optim itself: the constructor of every torch optimizer imports
torch._dynamo, which takes as long as importing torch (about a second), and a
run would pay it in every process before the first step. A user's task may
still return any torch.optim optimizer; tests compare the two bit by bit.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

_LARGE = 1 << 20  # numbers: from here on a launch of its own costs nothing
_LARGE_KINDS = (torch.bfloat16, torch.float16, torch.float32)


class _Optimizer:
    """Parameter groups and state in the shape of torch.optim.Optimizer."""

    def __init__(self, parameters: Iterable[nn.Parameter], defaults: dict[str, float | bool]) -> None:
        self.parameters: list[Tensor] = list(parameters)
        group: dict[str, Any] = {"params": self.parameters, **defaults}  # Any: torch's own shape
        self.param_groups = [group]
        self.steps = 0
        self.slots: dict[str, list[Tensor]] = {}

    def _gradients(self) -> list[Tensor]:
        gradients = [p.grad for p in self.parameters]
        assert all(g is not None for g in gradients), "every parameter has a gradient after backward"
        return [g for g in gradients if g is not None]

    def _slot(self, name: str) -> list[Tensor]:
        if name not in self.slots:
            self.slots[name] = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        return self.slots[name]

    def state_dict(self) -> dict[str, Any]:  # Any: torch's own shape
        settings = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        return {
            "steps": self.steps,
            "group": settings,
            "slots": {name: [t.clone() for t in slot] for name, slot in self.slots.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: torch's own shape
        self.steps = int(state_dict["steps"])
        self.param_groups[0].update(state_dict["group"])
        for name, tensors in state_dict["slots"].items():
            for own, saved in zip(self._slot(name), tensors, strict=True):
                own.copy_(saved)


class Sgd(_Optimizer):
    """torch.optim.SGD: plain, heavy-ball or Nesterov, with L2 as weight decay."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            parameters,
            {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay},
        )

    @torch.no_grad()
    def step(self) -> None:
        group = self.param_groups[0]
        gradients = self._gradients()
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, self.parameters, alpha=group["weight_decay"]))
        if group["momentum"]:
            gradients = self._with_momentum(gradients, group["momentum"], nesterov=group["nesterov"])
        torch._foreach_add_(self.parameters, gradients, alpha=-group["lr"])
        self.steps += 1

    def _with_momentum(self, gradients: list[Tensor], momentum: float, *, nesterov: bool) -> list[Tensor]:
        velocity = self._slot("momentum")
        if self.steps == 0:
            torch._foreach_copy_(velocity, gradients)  # torch starts the buffer at the first gradient
        else:
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, gradients)
        return list(torch._foreach_add(gradients, velocity, alpha=momentum)) if nesterov else velocity


class Adam(_Optimizer):
    """torch.optim.Adam, or AdamW when `decoupled` (the decay then acts on the parameters)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps}
        super().__init__(parameters, {**defaults, "weight_decay": weight_decay, "decoupled": decoupled})

    @property
    def is_frozen(self) -> bool:
        return "frozen_at" in self.param_groups[0]

    def freeze(self) -> None:
        """Keep the second moment as it now is; from now on `step` takes gradients for ready first moments."""
        self.param_groups[0]["frozen_at"] = self.steps

    @torch.no_grad()
    def to_momentum(self) -> None:
        """Replace every gradient by the first moment that it leads to."""
        gradients = self._gradients()
        moments = torch._foreach_lerp(
            self._slot("first_moment"), self._decayed(gradients), 1 - self.param_groups[0]["beta1"]
        )
        torch._foreach_copy_(gradients, moments)

    @torch.no_grad()
    def step(self) -> None:
        group = self.param_groups[0]
        gradients = self._gradients()
        self.steps += 1
        first = self._slot("first_moment")
        second = self._slot("second_moment")
        if self._is_one_kernel:
            self._in_one_kernel(gradients, first, second)
            return
        if group["weight_decay"] and group["decoupled"]:
            torch._foreach_mul_(self.parameters, 1 - group["lr"] * group["weight_decay"])
        if self.is_frozen:
            torch._foreach_copy_(first, gradients)
        else:
            gradients = self._decayed(gradients)
            torch._foreach_lerp_(first, gradients, 1 - group["beta1"])
            torch._foreach_mul_(second, group["beta2"])
            torch._foreach_addcmul_(second, gradients, gradients, value=1 - group["beta2"])
        rate = -group["lr"] / (1 - group["beta1"] ** self.steps)
        torch._foreach_addcdiv_(self.parameters, first, self._denominator(second), value=rate)

    @property
    def _is_one_kernel(self) -> bool:
        """On a GPU the whole update is one pass over memory instead of eight."""
        return self.parameters[0].is_cuda and not self.is_frozen

    def _in_one_kernel(self, gradients: list[Tensor], first: list[Tensor], second: list[Tensor]) -> None:
        small: list[tuple[Tensor, ...]] = []
        for tensors in zip(self.parameters, gradients, first, second, strict=True):
            if self._is_large(tensors[0]):
                self._update_large(*(_own_part(tensor) for tensor in tensors))
            else:
                small.append(tensors)
        if small:
            self._update_small(small)

    def _is_large(self, parameter: Tensor) -> bool:
        group = self.param_groups[0]
        is_known = parameter.dtype in _LARGE_KINDS and (group["decoupled"] or not group["weight_decay"])
        return is_known and parameter.numel() >= _LARGE and find_spec("triton") is not None

    def _update_large(self, parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
        from paceline.tasks.optim_kernel import update

        group = self.param_groups[0]
        settings = {name: group[name] for name in ("lr", "beta1", "beta2", "eps")}
        update(parameter, gradient, first, second, steps=self.steps, decay=group["weight_decay"], **settings)

    def _update_small(self, tensors: list[tuple[Tensor, ...]]) -> None:
        """All of them in one launch, by torch's own kernel."""
        group = self.param_groups[0]
        update = torch._fused_adamw_ if group["decoupled"] else torch._fused_adam_
        step = torch.tensor(float(self.steps), device=self.parameters[0].device)
        parameters, gradients, first, second = (list(column) for column in zip(*tensors, strict=True))
        update(
            parameters,
            gradients,
            first,
            second,
            [],
            [step] * len(gradients),
            lr=group["lr"],
            beta1=group["beta1"],
            beta2=group["beta2"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _decayed(self, gradients: list[Tensor]) -> list[Tensor]:
        group = self.param_groups[0]
        if not group["weight_decay"] or group["decoupled"]:
            return gradients
        return list(torch._foreach_add(gradients, self.parameters, alpha=group["weight_decay"]))

    def _denominator(self, second: list[Tensor]) -> list[Tensor]:
        group = self.param_groups[0]
        seen = group.get("frozen_at", self.steps)  # gradients that are in the second moment
        denominator = list(torch._foreach_sqrt(second))
        torch._foreach_div_(denominator, (1 - group["beta2"] ** seen) ** 0.5)
        torch._foreach_add_(denominator, group["eps"])
        if self.is_frozen:  # nothing is known about what never had a gradient, so it is not moved
            for divisor, moment in zip(denominator, second, strict=True):
                divisor.masked_fill_(moment == 0, float("inf"))
        return denominator


def _own_part(tensor: Tensor) -> Tensor:
    """Local part of a tensor that is split over ranks (torch's DTensor)."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def build_optimizer(
    name: str, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float
) -> Sgd | Adam:
    """The optimizer that `--optimizer NAME` means (names in plan.catalog.OPTIMIZERS)."""
    if name in ("adam", "adamw"):
        return Adam(parameters, lr=lr, weight_decay=weight_decay, decoupled=name == "adamw")
    momentum = 0.0 if name == "sgd" else 0.9
    return Sgd(parameters, lr=lr, momentum=momentum, nesterov=name == "nesterov", weight_decay=weight_decay)
