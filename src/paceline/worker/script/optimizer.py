"""A script's optimizer and learning-rate schedulers, whose steps belong to the step loop.

`optimizer.step` and `scheduler.step` are replaced on the instances, so the script's own calls reach the
session; the originals make the updates. A schedule is moved to the step of the run before each update
(`Scheduled`), so the rate at a step is the same in every mode, also where another process makes the update.
"""

import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

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


class _Part:
    """One optimizer and its scheduler, with their own `step`, which the script's calls no longer reach."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None, *, in_turn: bool
    ) -> None:
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.is_counted = not (scheduler is None or in_turn or isinstance(scheduler, ReduceLROnPlateau))
        self.step = optimizer.step
        self.schedule: Callable[..., object] = (lambda: None) if scheduler is None else scheduler.step

    def state_dict(self) -> dict[str, Any]:  # Any: as torch declares it
        schedule: dict[str, Any] = {} if self.scheduler is None else self.scheduler.state_dict()
        return {**self.optimizer.state_dict(), "schedule": schedule}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch declares it
        own = {name: value for name, value in state_dict.items() if name != "schedule"}
        self.optimizer.load_state_dict(own)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state_dict["schedule"])


class ScriptOptimizer(Scheduled):
    """The optimizers of one update, as the step loop uses them."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Mapping[int, LRScheduler],
        count_at: CountAt,
        *,
        in_turn: bool,
    ) -> None:
        """`schedulers`: by the identity of their optimizer. `in_turn`: other optimizers may step more
        often."""
        self._parts = [_Part(each, schedulers.get(id(each)), in_turn=in_turn) for each in optimizers]
        self._count = 0  # calls of the schedulers, of those that belong to the run so far
        self._count_at = count_at
        self._was_used = False
        self.clips: list[Clip] = []  # of the present share
        self.usual_clips: list[Clip] = []  # of an update whose gradients other workers computed
        self.scaler: ScalerParts | None = None
        self.after_update: list[Callable[[], object]] = []
        self._is_in_share = False
        self.updates = 0  # made by this process
        self._rates = self._present_rates()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # Any: as torch declares it
        return [group for part in self._parts for group in part.optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # Any: as torch declares it
        raise AssertionError("the groups of a script's optimizers are its own")

    def begin(self, step: int) -> None:
        if any(part.is_counted for part in self._parts):
            self.advance_to(self._count_at(step))

    def advance_to(self, count: int) -> None:
        """The script has called its schedulers: `count` calls of each belong to the run so far."""
        with warnings.catch_warnings():
            # Steps that a checkpoint, or another worker, has made count, too.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            while self._count < count:
                for part in self._parts:
                    if part.is_counted:
                        part.schedule()
                self._count += 1
        self._rates = self._present_rates()

    def is_counted(self, scheduler: LRScheduler) -> bool:
        """Whether the rate is a function of the step of the run."""
        return self._of(scheduler).is_counted

    def schedule_by_hand(self, scheduler: LRScheduler, *values: object) -> None:
        """A call of the script that acts at once: of a turn, or with a number on which all workers agree."""
        self._of(scheduler).schedule(*values)
        self._rates = self._present_rates()

    def _of(self, scheduler: LRScheduler) -> _Part:
        return next(part for part in self._parts if part.scheduler is scheduler)

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
        is_finite = self.scaler is None or self.scaler.unscale(part.optimizer for part in self._parts)
        if is_finite:
            for clip in self.clips if self._is_in_share else self.usual_clips:
                clip.apply()
            for part in self._parts:
                part.step()
            for call in self.after_update:
                call()
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:  # Any: as torch declares it
        return {"count": self._count, "parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch declares it
        for part, saved in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(saved)
        self._count = int(state_dict["count"])
        self._rates = self._present_rates()

    def started(self) -> "ScriptOptimizer":
        """Itself; without its state, if a strategy starts it another time."""
        if self._was_used:
            for part in self._parts:
                part.optimizer.state.clear()
        self._was_used = True
        return self


class ScalerParts:
    """A GradScaler whose `unscale_` acts on the gradient on which the workers agree, so all skip or none."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        self._unscale = scaler.unscale_
        self._update = scaler.update
        self._has_measured = False  # since the last update of the scale
        scaler.unscale_ = _declare  # type: ignore[method-assign]  # declares; done in `unscale`
        scaler.step = _step  # type: ignore[method-assign]
        scaler.update = self._update_once  # type: ignore[method-assign]

    def unscale(self, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
        """Unscale the agreed gradients; whether they are finite."""
        self._has_measured = True
        is_finite = True
        for optimizer in optimizers:
            # So that there is a scale, also if this worker has skipped all batches so far.
            self._scaler.scale(torch.zeros((), device=optimizer.param_groups[0]["params"][0].device))
            self._unscale(optimizer)
            # torch offers no other access to what `GradScaler.step` decides by.
            state = self._scaler._per_optimizer_states[id(optimizer)]
            is_finite = is_finite and not any(
                float(found) for found in state["found_inf_per_device"].values()
            )
        return is_finite

    def unscaled(self, loss: float) -> float:
        """A loss that `scaler.scale` has scaled."""
        return loss / self._scaler.get_scale()

    def settle(self) -> None:
        """Update the scale after a step whose `scaler.update` the script left out, as after `run.skip`."""
        self._update_once()

    def _update_once(self, new_scale: float | Tensor | None = None) -> None:
        """The script's call acts once for each update."""
        if self._has_measured:
            self._has_measured = False
            self._update(new_scale)


def _declare(optimizer: torch.optim.Optimizer) -> None:
    """`scaler.unscale_` of the script: the agreed gradient is unscaled by the update."""


def _step(optimizer: torch.optim.Optimizer) -> None:
    """`scaler.step` of the script: the session decides about the update."""
    optimizer.step()


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
