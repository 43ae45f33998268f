"""Server-side updates: corrections of stale gradients (asgd) and the elastic exchange (easgd).

A correction gets the gradient, its staleness (updates applied since its worker
read), the present state and the state its worker read. With staleness 0 no
correction changes anything, so a run with one worker is the plain optimizer.

An exchange replaces the optimizer where workers push parameters. Vectors have the
layout of the state: parameters, buffers, and a tail that is not used here. An
exchange is atomic: the server makes one at a time.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.plan.plan import AsgdVariant, Plan


class Correction(Protocol):
    def keeps(self, staleness: int) -> bool:
        """Whether a gradient of this staleness is applied."""
        ...

    def rate_factor(self, staleness: int) -> float:
        """The factor of the learning rate for this update."""
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

    The state that each worker read is still in its slot, so no copy is kept.
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


class Exchange(Protocol):
    def shares(self, position: int) -> range:
        """The shares of a worker between two exchanges, beginning with `position`."""
        ...

    def swap(self, centre: Tensor, pushed: Tensor, answer: Tensor) -> None:
        """Move the centre in place, and write the worker's new state into `answer`."""
        ...


@dataclass(frozen=True, slots=True)
class ElasticExchange:
    """Centre and worker move towards each other by the same fraction (Zhang 2015, arXiv 1412.6651)."""

    alpha: float
    every: int  # local steps between two exchanges
    total: int  # shares in the whole run

    @classmethod
    def of(cls, plan: Plan) -> "ElasticExchange":
        options = plan.strategy
        return cls(options.elasticity / plan.num_workers, options.sync_every, plan.total_gradients)

    def shares(self, position: int) -> range:
        return range(position, min(position + self.every, self.total))

    def swap(self, centre: Tensor, pushed: Tensor, answer: Tensor) -> None:
        # One difference for both sides: the worker loses exactly what the centre gains.
        moved = (pushed - centre).mul_(self.alpha)
        answer.copy_(pushed).sub_(moved)
        centre.add_(moved)
