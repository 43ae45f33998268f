"""1-bit Adam (Tang 2021, arXiv 2102.02888): Adam at first, then signs of the momentum.

During the first `freeze_after` steps this equals ssgd with Adam, bit by bit. Then
the second moment v is frozen, and each worker mixes its own gradient into the
common momentum; these momenta are averaged as signs with error feedback in both
directions, and every worker moves by m / (√v + ε). With v frozen the rest of Adam
is linear, so error feedback can compensate the compression. Adam's bias correction
of v is frozen too, so that the step size does not jump.
"""

from dataclasses import replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from paceline.core.errors import MisfitError
from paceline.core.ids import Step
from paceline.plan.plan import Codec, Compression
from paceline.strategies.allreduce import AllReduceStrategy
from paceline.strategies.means import Mean, mean_of
from paceline.strategies.port import Replica

SIGNS = Compression(codec=Codec.SIGN)


@runtime_checkable
class Freezable(Protocol):
    """An Adam whose second moment can be frozen (tasks/optim.py)."""

    @property
    def is_frozen(self) -> bool: ...

    def freeze(self) -> None: ...

    def to_momentum(self) -> None: ...


class Onebit(AllReduceStrategy):
    def _make_means(self, shared: Tensor) -> None:
        self._adam = _adam_of(self._replica)
        self._exact, self._signs = (self._mean_of(compress, shared) for compress in (None, SIGNS))
        self._signs.restore(self._saved)

    def _mean_of(self, compress: Compression | None, shared: Tensor) -> Mean:
        plan = replace(self._plan, compress=compress)
        layout = self._arena.layout
        return mean_of(plan, self._links, shared, lossy_end=layout.buffers_start, pieces=layout.parameters)

    def _mean_at(self, step: Step) -> Mean:
        if step < self._plan.strategy.freeze_after:
            return self._exact
        if not self._adam.is_frozen:
            self._adam.freeze()
        self._adam.to_momentum()
        return self._signs

    def snapshot(self) -> dict[str, Tensor]:
        return self._signs.snapshot()


def _adam_of(replica: Replica) -> Freezable:
    # Not part of the port: no other strategy depends on the kind of optimizer.
    optimizer: object = getattr(replica, "optimizer", None)
    if not isinstance(optimizer, Freezable):
        raise MisfitError(
            "onebit freezes the second moment of Paceline's Adam, but the optimizer is "
            f"{type(optimizer).__name__}",
            "use --optimizer adam or --optimizer adamw",
        )
    return optimizer
