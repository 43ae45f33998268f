"""Deep Gradient Compression (Lin 2017, arXiv 1712.01887): momentum before selecting, not after.

u ← μu + g; v ← v + u; the largest of v are sent, and both are zeroed there. So
a number that is held back gathers momentum as if it had been sent, and what
was sent late does not push on with old momentum (factor masking). When
everything is sent nothing was held back, so nothing is masked: that is SGD
with momentum. Each worker's gradient is clipped by itself, to limit / √N.

During the first `warmup` steps more is sent: 1/4, 1/16, 1/64, 1/256 of the
numbers for a quarter of them each, but never less than the part asked for.
"""

import torch
from torch import Tensor

from paceline.compression.topk import TopK

MOMENTUM = 0.9
STAGES = 4


def density(step: int, *, part: float, warmup: int) -> float:
    """Which part of the numbers is sent at this step."""
    if step >= warmup:
        return part
    return max(part, 0.25 ** (1 + step * STAGES // warmup))


class Dgc:
    def __init__(self, like: Tensor, *, part: float, warmup: int, clip: float | None) -> None:
        self._part, self._warmup, self._clip = part, warmup, clip
        self._velocity, self._owed = like.new_zeros(like.shape), like.new_zeros(like.shape)
        self._step = 0

    def choose(self, part: Tensor) -> tuple[TopK, Tensor]:
        coder = TopK(density(self._step, part=self._part, warmup=self._warmup))
        self._step += 1
        self._velocity.mul_(MOMENTUM).add_(self._clipped(part))
        self._owed.add_(self._velocity)
        payload = coder.encode(self._owed)
        sent = coder.places(payload, part.dtype)
        self._owed.index_fill_(0, sent, 0.0)
        if sent.numel() < part.numel():
            self._velocity.index_fill_(0, sent, 0.0)
        return coder, payload

    def _clipped(self, gradient: Tensor) -> Tensor:
        if self._clip is None:
            return gradient
        norm = float(torch.linalg.vector_norm(gradient))
        return gradient * (self._clip / norm) if norm > self._clip else gradient

    def snapshot(self) -> dict[str, Tensor]:
        return {"velocity": self._velocity, "owed": self._owed, "step": torch.tensor([self._step])}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._velocity.copy_(saved["velocity"])
        self._owed.copy_(saved["owed"])
        self._step = int(saved["step"])
