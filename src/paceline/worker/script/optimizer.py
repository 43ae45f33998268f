"""A script's optimizer and learning-rate schedulers, whose steps belong to the step loop.

`optimizer.step` and `scheduler.step` are replaced on the instances, so the script's own calls reach the
session; the originals make the updates. A schedule is moved to the step of the run before each update
(`Scheduled`), so the rate at a step is the same in every mode, also where another process makes the update.
"""

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from paceline.tasks.torch_adapters import Scheduled

CountAt = Callable[[int], int]  # the scheduler's count at a step of the run


@dataclass(frozen=True, slots=True)
class Clip:
    """A limit for the agreed gradient."""

    parameters: tuple[nn.Parameter, ...]
    limit: float
    by_norm: bool
    norm: Tensor  # filled in by the update

    def apply(self) -> None:
        if self.by_norm:
            self.norm.copy_(nn.utils.clip_grad_norm_(self.parameters, self.limit))
        else:
            nn.utils.clip_grad_value_(self.parameters, self.limit)


class _OwnScheduler:
    """The scheduler's own `step`, which the script's calls no longer reach."""

    def __init__(self, scheduler: LRScheduler | None) -> None:
        self._scheduler = scheduler
        self.step = (lambda: None) if scheduler is None else scheduler.step

    def state_dict(self) -> dict[str, Any]:  # Any: as torch declares it
        return {} if self._scheduler is None else self._scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch declares it
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state_dict)


class ScriptOptimizer(Scheduled):
    """The optimizer as the step loop uses it."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None, count_at: CountAt
    ) -> None:
        super().__init__(optimizer, _OwnScheduler(scheduler))
        self._own_step = optimizer.step
        self._has_schedule = scheduler is not None
        self._count_at = count_at
        self._was_used = False
        self.clips: list[Clip] = []  # of the present share
        self.usual_clips: list[Clip] = []  # of an update whose gradients other workers computed
        self._is_in_share = False
        self.updates = 0  # made by this process
        self._rates = self._present_rates()

    def begin(self, step: int) -> None:
        if self._has_schedule:
            self.advance_to(self._count_at(step))

    def advance_to(self, count: int) -> None:
        """The script has called its scheduler: `count` calls of it belong to the run so far."""
        super().begin(count)
        self._rates = self._present_rates()

    def rates_were_set(self) -> bool:
        """Whether something else than the scheduler has set a learning rate."""
        return self._present_rates() != self._rates

    def _present_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.param_groups]

    def begin_share(self) -> None:
        """The script computes a gradient from here on."""
        self._is_in_share = True
        self.clips = []

    def end_share(self) -> None:
        """The other workers may make steps without a gradient of this one."""
        self._is_in_share = False
        self.usual_clips = self.clips

    def step(self) -> None:
        for clip in self.clips if self._is_in_share else self.usual_clips:
            clip.apply()
        self._own_step()
        self.updates += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch declares it
        super().load_state_dict(state_dict)
        self._rates = self._present_rates()

    def started(self) -> "ScriptOptimizer":
        """Itself; without its state, if a strategy starts it another time."""
        if self._was_used:
            self._optimizer.state.clear()
        self._was_used = True
        return self


def replace_step(owner: object, call: Callable[..., None]) -> None:
    """Let `owner.step(…)` call this instead."""

    def step(_: object, *args: object, **kwargs: object) -> None:
        call(*args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # torch's schedulers look for it
    if isinstance(owner, LRScheduler):
        # In its class: the state of a scheduler, which scripts save, is every attribute of the instance.
        owner.__class__ = type(type(owner).__name__, (type(owner),), {"step": step})
    else:
        owner.step = types.MethodType(step, owner)  # type: ignore[attr-defined]  # an instance attribute
