"""Sparse means: every worker gathers all messages of (place, value) and adds them up.

Each message is places and values; every worker adds the N messages in rank
order and divides by N. That is (N-1) messages out and in, so a part of the
numbers saves bytes only while it is below 1/N.
"""

from typing import Protocol

import torch
from torch import Tensor

from paceline.compression.codecs import Stopwatch, TopK
from paceline.compression.error_feedback import memory_of
from paceline.compression.exchange import Exchange, ExchangeKind, RankVectors, Reduction
from paceline.core.clock import Clock


class Selection(Protocol):
    """Selection of the values that a worker sends, and its state."""

    def choose(self, part: Tensor) -> tuple[TopK, Tensor]:
        """The message, and the coder that can read it."""
        ...

    def snapshot(self) -> dict[str, Tensor]: ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...


class TopKSelection:
    """Top-k with error feedback: what is not sent is owed."""

    def __init__(self, coder: TopK, like: Tensor, *, error_feedback: bool) -> None:
        self._coder = coder
        self._memory = memory_of(like, error_feedback=error_feedback)

    def choose(self, part: Tensor) -> tuple[TopK, Tensor]:
        payload = self._coder.encode(self._memory.corrected(part))
        if self._memory.remembers:
            self._memory.sent(self._coder.decode(payload, part.numel(), part.dtype))
        return self._coder, payload

    def snapshot(self) -> dict[str, Tensor]:
        return self._memory.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._memory.restore(saved)


class GatheredMean:
    def __init__(self, selection: Selection, vectors: RankVectors, *, clock: Clock) -> None:
        self._selection = selection
        self._vectors = vectors
        self._watch = Stopwatch(clock)
        self._places: dict[int, Tensor] = {}  # by size: a selection may send less over time

    def reduction(self, part: Tensor) -> Reduction:
        with self._watch:
            coder, payload = self._selection.choose(part)
            shared = self._place(payload.numel())
            shared.copy_(payload)
        payloads = yield Exchange(ExchangeKind.GATHER, shared)
        with self._watch:
            part.zero_()
            for gathered in payloads:
                coder.add_to(part, gathered)
            part.div_(len(payloads))
        return self._watch.traffic()

    def _place(self, size: int) -> Tensor:
        if size not in self._places:  # all workers get a new size in the same round
            self._places[size] = self._vectors.allocate(size, torch.uint8)
        return self._places[size]

    def snapshot(self) -> dict[str, Tensor]:
        return self._selection.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._selection.restore(saved)


# u ← μu + g; v ← v + u; the largest of v are sent, and both are zeroed there. So
# a number that is held back gathers momentum as if it had been sent, and what
# was sent late does not push on with old momentum (factor masking). When
# everything is sent nothing was held back, so nothing is masked: that is SGD
# with momentum. Each worker's gradient is clipped by itself, to limit / √N.
#
# During the first `warmup` steps more is sent: 1/4, 1/16, 1/64, 1/256 of the
# numbers for a quarter of them each, but never less than the configured part.

DGC_MOMENTUM = 0.9
DGC_STAGES = 4


def density(step: int, *, part: float, warmup: int) -> float:
    """Which part of the numbers is sent at this step."""
    if step >= warmup:
        return part
    return max(part, 0.25 ** (1 + step * DGC_STAGES // warmup))


class Dgc:
    def __init__(self, like: Tensor, *, part: float, warmup: int, clip: float | None) -> None:
        self._part = part
        self._warmup = warmup
        self._clip = clip
        self._velocity = like.new_zeros(like.shape)
        self._owed = like.new_zeros(like.shape)
        self._step = 0

    def choose(self, part: Tensor) -> tuple[TopK, Tensor]:
        coder = TopK(density(self._step, part=self._part, warmup=self._warmup))
        self._step += 1
        self._velocity.mul_(DGC_MOMENTUM).add_(self._clipped(part))
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
