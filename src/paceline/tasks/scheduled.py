"""An optimizer whose learning rate is set by a scheduler that the task returned beside it.

The scheduler is moved to the step of the run before each update, not once per
update: behind a parameter server every gradient is an update of its own, and the
rate at step 100 must be the same in every mode. Its state is part of the
optimizer's, so checkpoints, joining workers and replays have it.
"""

import warnings
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from paceline.errors import OwnClassError, Problem
from paceline.tasks.dataset_samples import place_of
from paceline.tasks.port import Optimizer, Task


@runtime_checkable
class Scheduler(Protocol):
    """The part of torch's LRScheduler that is used."""

    def step(self) -> object: ...

    def state_dict(self) -> dict[str, Any]: ...  # Any: as torch declares it

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...  # Any: as torch declares it


class Scheduled:
    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Scheduler) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._step = 0  # of the run, for which the rate is set

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # Any: as torch declares it
        return self._optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # Any: as torch declares it
        self._optimizer.param_groups = groups

    def begin(self, step: int) -> None:
        """Set the rate of this step of the run; a late gradient of an earlier step does not set it back."""
        with warnings.catch_warnings():
            # Steps that a checkpoint, or another worker, has made count, too.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            while self._step < step:
                self._scheduler.step()
                self._step += 1

    def step(self) -> None:
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:  # Any: as torch declares it
        schedule = {"step": self._step, "scheduler": self._scheduler.state_dict()}
        return {**self._optimizer.state_dict(), "schedule": schedule}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch declares it
        schedule = state_dict["schedule"]
        own = {name: value for name, value in state_dict.items() if name != "schedule"}
        self._optimizer.load_state_dict(own)
        self._scheduler.load_state_dict(schedule["scheduler"])
        self._step = int(schedule["step"])


def optimizer_of(task: Task, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """What `task.optimizer(…)` returns, as one; else an OwnClassError with the user's file and line."""
    found: Any = task.optimizer(parameters)  # Any: whatever the user returns
    if isinstance(found, tuple | list) and len(found) == 2:
        return _with_scheduler(task, *found)
    if all(hasattr(found, name) for name in ("param_groups", "step", "state_dict", "load_state_dict")):
        optimizer: Optimizer = found
        return optimizer
    raise _refused(
        task,
        f"optimizer() returns a {type(found).__name__}",
        "return an optimizer, or (optimizer, scheduler); a scheduler is stepped once per step of the run",
    )


def _with_scheduler(task: Task, optimizer: object, scheduler: object) -> Scheduled:
    if not isinstance(optimizer, torch.optim.Optimizer):
        what = f"optimizer() returns a scheduler beside a {type(optimizer).__name__}"
        raise _refused(task, what, "return (optimizer, scheduler) with one optimizer of torch.optim")
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, Scheduler):
        what = f"optimizer() returns a {type(scheduler).__name__}, which is not stepped by steps alone"
        raise _refused(
            task, what, "use a scheduler whose step() takes no value, such as OneCycleLR or LambdaLR"
        )
    if (held := _not_plain(scheduler.state_dict())) is not None:
        what = f"the state of {type(scheduler).__name__} holds {held}, which a checkpoint cannot hold"
        raise _refused(task, what, "use functions instead of objects with a state of their own")
    return Scheduled(optimizer, scheduler)


def _not_plain(value: object) -> str | None:
    """What in it a checkpoint cannot hold; None: nothing."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((held for part in value if (held := _not_plain(part)) is not None), None)
    is_plain = value is None or isinstance(value, bool | int | float | str | torch.Tensor)
    return None if is_plain else f"a {type(value).__name__}"


def _refused(task: Task, what: str, hint: str) -> OwnClassError:
    return OwnClassError([Problem(f"{what} ({place_of(task, 'optimizer')})", hint)])
