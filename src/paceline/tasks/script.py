"""Script task: the model, the optimizer and the data that a user's own training script prepared.

A plan names this class and the script's file; the objects come from the script itself, which runs in the
same thread (`provide`, called by worker/script when the script takes its first batch). So every launcher,
mode and checkpoint treats a script like any other task. The script computes the loss, so `loss` is never
called. See docs/guides/your-own-script.md.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from paceline.core.errors import OwnClassError, Problem
from paceline.plan.plan import Option
from paceline.tasks.port import Batch, Optimizer, Samples


class Kept(Protocol):
    """State that a script keeps beside the model and the optimizer."""

    def state_dict(self) -> dict[str, Any]: ...  # Any: tensors and plain values

    def load_state_dict(self, saved: dict[str, Any]) -> None: ...  # Any: as `state_dict` returned it


@dataclass(frozen=True, slots=True)
class Turn:
    """Optimizers that step together, and the modules that they train."""

    module: nn.Module
    optimizer: Callable[[], Optimizer]  # resets its state where a strategy starts it again


@dataclass(frozen=True, slots=True)
class ScriptParts:
    """What a script prepared."""

    module: nn.Module
    optimizer: Callable[[], Optimizer]  # as in a Turn
    samples: Samples
    kept: Kept
    turns: tuple[Turn, ...]  # several: they step in turn


class _Provided(threading.local):
    parts: ScriptParts | None = None


_PROVIDED = _Provided()


def provide(parts: ScriptParts) -> None:
    """Let tasks that this thread builds consist of these parts."""
    _PROVIDED.parts = parts


class ScriptTask:
    def __init__(self, *, seed: int, **options: Option) -> None:
        self.options: Mapping[str, Option] = options

    def model(self) -> nn.Module:
        return _parts().module

    def samples(self) -> Samples:
        return _parts().samples

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return _parts().optimizer()

    def kept(self) -> Kept:
        return _parts().kept

    def turns(self) -> tuple[Turn, ...]:
        return _parts().turns

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise AssertionError("the script computes its loss itself")

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {}  # the script evaluates its model itself


def _parts() -> ScriptParts:
    if _PROVIDED.parts is None:
        message = "the objects of a script exist only while the script runs"
        raise OwnClassError([Problem(message, "start it with:  paceline run script.py")])
    return _PROVIDED.parts
