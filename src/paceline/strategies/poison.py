"""What if the mean of a step is no number? It is noticed before the update, and all decide the same.

One NaN anywhere in the mean makes its sum no number, so one pass over it is
enough. Everybody has the same mean, so everybody comes to the same decision
without asking: stop with an error, or make no update at this step.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from paceline.errors import HopelessError, NotFiniteError
from paceline.plan.plan import OnNan, Plan


def is_poison(mean: Tensor) -> bool:
    return not math.isfinite(float(mean.sum()))


def poisoned_shards(slots: Sequence[Tensor]) -> list[int]:
    """Whose gradient it was."""
    return [shard for shard, slot in enumerate(slots) if is_poison(slot)]


def in_words(shards: Sequence[int]) -> str:
    return ",".join(map(str, shards)) or "unknown"


class Guard:
    """Asked with every mean; remembers what a step changes before its update, so that it can be undone."""

    def __init__(self, plan: Plan, module: nn.Module) -> None:
        self.on_nan = plan.strategy.on_nan
        self._buffers = list(module.buffers()) if self.on_nan is OnNan.SKIP else []
        self._before = [buffer.clone() for buffer in self._buffers]

    def skips(self, mean: Tensor, step: int, *, whose: str) -> bool:
        """Is there to be no update? HopelessError when the run is to stop."""
        if self.on_nan is None or not is_poison(mean):
            return False
        if self.on_nan is OnNan.STOP:
            raise stopped(step, whose)
        self.undo()
        return True

    def keep(self) -> None:
        """The step is over: what its batch statistics are now is what a next one begins with."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            before.copy_(buffer)

    def undo(self) -> None:
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)


def stopped(step: int, whose: str) -> HopelessError:
    return NotFiniteError(
        f"the mean gradient of step {step} is not finite: NaN or infinity in {whose}",
        "look at the samples and the learning rate; --on-nan skip leaves such steps out; "
        "the update was not made, and checkpoints are from before it",
    )
