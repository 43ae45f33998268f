"""How do workers that meet average one vector? As it is, or compressed if the plan says so.

A strategy makes one `Mean` for each vector that it averages. `lossy_end` is
where the part of the vector ends that may be approximated; what follows
(buffers, the wish to stop) is always averaged exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.compression.mean import compressed_mean
from paceline.plan.plan import Plan
from paceline.strategies.port import Links
from paceline.transport.arena import Piece
from paceline.transport.ports import Collective, Traffic


class Mean(Protocol):
    @property
    def is_lossy(self) -> bool:
        """Must the vector hold differences from something common, so that a small error stays small?"""
        ...

    def reduce(self) -> Traffic:
        """Replace the vector by the mean over all workers; every worker then holds the same bits."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """What must be remembered from one averaging to the next."""
        ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class ExactMean:
    collective: Collective
    vector: Tensor
    is_lossy = False

    def reduce(self) -> Traffic:
        return self.collective.all_reduce_mean(self.vector)

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...


def mean_of(
    plan: Plan, links: Links, vector: Tensor, *, lossy_end: int, pieces: Sequence[Piece] = ()
) -> Mean:
    """The plan's way of averaging `vector` (from `allocate`); `pieces` are the tensors it consists of."""
    assert links.collective is not None, "averaging needs a collective"
    if plan.compress is None or lossy_end == 0:
        return ExactMean(links.collective, vector)
    return compressed_mean(
        plan,
        plan.compress,
        links.collective,
        vector,
        lossy_end=lossy_end,
        pieces=pieces,
        clock=links.clock,
    )


def named(saved: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Of what was saved, what belongs to one of several means; the names without their prefix."""
    return {name.removeprefix(prefix): t for name, t in saved.items() if name.startswith(prefix)}
