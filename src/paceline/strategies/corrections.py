"""What does an asynchronous server do about a gradient that comes late?

All see the gradient, how stale it is (updates applied since its worker read),
the state now and the state its worker read. With staleness 0 none of them
changes anything, so one worker is always the plain optimizer.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.plan.plan import AsgdVariant, Plan


class Correction(Protocol):
    def keeps(self, staleness: int) -> bool:
        """Is a gradient this stale applied at all?"""
        ...

    def rate_factor(self, staleness: int) -> float:
        """What the learning rate is multiplied by for this update."""
        ...

    def compensate(self, gradient: Tensor, now: Tensor, read: Tensor) -> None:
        """Change the gradient in place; `now` and `read` are states of the same layout."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    def keeps(self, staleness: int) -> bool:
        return True

    def rate_factor(self, staleness: int) -> float:
        return 1.0

    def compensate(self, gradient: Tensor, now: Tensor, read: Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class StalenessAware(Plain):
    """The rate is divided by the staleness (Zhang 2015, arXiv 1511.05950)."""

    def rate_factor(self, staleness: int) -> float:
        return 1.0 / max(1, staleness)


@dataclass(frozen=True, slots=True)
class DelayCompensated(Plain):
    """DC-ASGD (Zheng 2017, arXiv 1609.08326): g + λ·g·g·(w - what this worker read).

    The state that each worker read still lies in its slot, so no copy is kept.
    """

    strength: float

    def compensate(self, gradient: Tensor, now: Tensor, read: Tensor) -> None:
        if self.strength:
            gradient.add_(gradient.square().mul_(now - read), alpha=self.strength)


@dataclass(frozen=True, slots=True)
class Ringmaster(Plain):
    """Gradients as stale as the limit are discarded, and their share is done again."""

    limit: int | None

    def keeps(self, staleness: int) -> bool:
        return self.limit is None or staleness < self.limit


def correction_of(plan: Plan) -> Correction:
    options = plan.strategy
    match options.asgd:
        case AsgdVariant.PLAIN:
            return Plain()
        case AsgdVariant.STALENESS_AWARE:
            return StalenessAware()
        case AsgdVariant.DC:
            return DelayCompensated(options.dc_lambda)
        case AsgdVariant.RINGMASTER:
            return Ringmaster(options.max_staleness)
