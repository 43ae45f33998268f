"""How do workers that made different steps bring their optimizers together? By the mean of their tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.transport.ports import NO_TRAFFIC, Collective, Traffic


class Moments:
    """The same tensors each time; they are copied into one vector, which is made when first needed."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._shared: Tensor | None = None

    def average(self, tensors: Sequence[Tensor], *, weight: float = 1.0) -> Traffic:
        """Every tensor becomes the mean over all workers, in place."""
        if not tensors:
            return NO_TRAFFIC
        sizes = [t.numel() for t in tensors]
        if self._shared is None:
            self._shared = self._collective.allocate(sum(sizes), tensors[0].dtype)
        parts = torch.split(self._shared, sizes)
        for tensor, part in zip(tensors, parts, strict=True):
            part.copy_(tensor.reshape(-1))
        if weight != 1.0:
            self._shared.mul_(weight)
        traffic = self._collective.all_reduce_mean(self._shared)
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        return traffic
