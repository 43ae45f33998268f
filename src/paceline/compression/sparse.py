"""How do workers average when each sends other places? All gather all, and add up.

Each message is places and values; every worker adds the N messages in rank
order and divides by N. That is (N-1) messages out and in, so a part of the
numbers saves bytes only while it is below 1/N.
"""

from typing import Protocol

import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.compression.memory import memory_of
from paceline.compression.stopwatch import Stopwatch
from paceline.compression.topk import TopK
from paceline.transport.ports import Collective, Traffic


class Selection(Protocol):
    """What a worker sends of its part, and what it remembers."""

    def choose(self, part: Tensor) -> tuple[TopK, Tensor]:
        """The message, and the coder that can read it."""
        ...

    def snapshot(self) -> dict[str, Tensor]: ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...


class Largest:
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
    def __init__(self, selection: Selection, collective: Collective, *, clock: Clock) -> None:
        self._selection, self._collective, self._watch = selection, collective, Stopwatch(clock)
        self._places: dict[int, Tensor] = {}  # by size: a selection may send less as time goes on

    def reduce(self, part: Tensor) -> Traffic:
        with self._watch:
            coder, payload = self._selection.choose(part)
            shared = self._place(payload.numel())
            shared.copy_(payload)
        payloads, traffic = self._collective.gather(shared)
        with self._watch:
            part.zero_()
            for one in payloads:
                coder.add_to(part, one)
            part.div_(len(payloads))
        return traffic + self._watch.traffic()

    def _place(self, size: int) -> Tensor:
        if size not in self._places:  # all workers meet a new size in the same round
            self._places[size] = self._collective.allocate(size, torch.uint8)
        return self._places[size]

    def snapshot(self) -> dict[str, Tensor]:
        return self._selection.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._selection.restore(saved)
