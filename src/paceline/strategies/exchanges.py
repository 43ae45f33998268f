"""What does a server do with a push that is a worker's own parameters rather than a gradient?

The vectors have the layout of the state: parameters, then buffers, then a tail
that means nothing here. An exchange is atomic: the server makes one at a time.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.plan.plan import Plan


class Exchange(Protocol):
    def shares(self, position: int) -> range:
        """The shares of the work that a worker does between two exchanges, when it is handed `position`."""
        ...

    def swap(self, centre: Tensor, pushed: Tensor, answer: Tensor) -> None:
        """Move the centre in place, and write what the worker goes on with into `answer`."""
        ...


@dataclass(frozen=True, slots=True)
class Elastic:
    """Both move towards each other by the same part of their distance (Zhang 2015, arXiv 1412.6651)."""

    alpha: float
    every: int  # local steps between two exchanges
    total: int  # shares in the whole run

    @classmethod
    def of(cls, plan: Plan) -> "Elastic":
        options = plan.strategy
        return cls(options.elasticity / plan.num_workers, options.sync_every, plan.total_gradients)

    def shares(self, position: int) -> range:
        return range(position, min(position + self.every, self.total))

    def swap(self, centre: Tensor, pushed: Tensor, answer: Tensor) -> None:
        # One difference for both sides: what the worker gives is what the centre takes.
        moved = (pushed - centre).mul_(self.alpha)
        answer.copy_(pushed).sub_(moved)
        centre.add_(moved)
