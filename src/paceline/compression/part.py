"""What must a way of averaging with losses do? Average the part of a vector that it is given."""

from typing import Protocol

from torch import Tensor

from paceline.transport.ports import Traffic


class LossyMean(Protocol):
    def reduce(self, part: Tensor) -> Traffic:
        """Replace the part by about its mean over all workers; every worker then holds the same bits."""
        ...

    def snapshot(self) -> dict[str, Tensor]: ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...
