"""Compressed gradients in a worker's slot of a parameter server.

First, as they are, the numbers that must stay exact (buffers and tail), so
that they start where a number may start; then the payload. The worker keeps
the error memory; the server only decodes, and answers with full parameters.
"""

from dataclasses import replace

from torch import Tensor

from paceline.compression.codecs import Stopwatch, as_bytes, coder_of
from paceline.compression.error_feedback import memory_of
from paceline.core.clock import Clock
from paceline.core.ids import Rank
from paceline.plan.plan import Compression, Plan
from paceline.transport.arena import Arena, Layout
from paceline.transport.ports import Traffic


class PushFormat:
    """Layout of a push, equal on both sides: offsets and lengths."""

    def __init__(self, compress: Compression, layout: Layout, *, seed: int, rank: Rank) -> None:
        self.coder = coder_of(compress, seed=seed, rank=rank)
        self._end = layout.buffers_start
        self._dtype = layout.dtype
        self._numel = layout.numel
        self._exact_bytes = (layout.numel - layout.buffers_start) * layout.dtype.itemsize
        self.slot_bytes = self._exact_bytes + self.coder.payload_bytes(layout.buffers_start, layout.dtype)
        self.saved_bytes = layout.numel * layout.dtype.itemsize - self.slot_bytes

    def write(self, slot: Tensor, payload: Tensor, exact: Tensor) -> None:
        slot[: self._exact_bytes] = as_bytes(exact)
        slot[self._exact_bytes :] = payload

    def read(self, slot: Tensor, gradients: Tensor) -> None:
        """Decode a slot into a vector of the layout."""
        gradients[: self._end] = self.coder.decode(slot[self._exact_bytes :], self._end, self._dtype)
        gradients[self._end :] = slot[: self._exact_bytes].view(self._dtype)


def push_format(plan: Plan, layout: Layout, rank: Rank) -> PushFormat | None:
    """Format of pushed gradients; None: not compressed."""
    return None if plan.compress is None else PushFormat(plan.compress, layout, seed=plan.seed, rank=rank)


class Pusher:
    """A worker's side: its memory, and how many messages it has sent."""

    def __init__(self, shape: PushFormat, like: Tensor, *, error_feedback: bool, clock: Clock) -> None:
        """`like` is the part of the gradients that is compressed."""
        self._format = shape
        self._like = like
        self._end = like.numel()
        self._error_feedback = error_feedback
        self._watch = Stopwatch(clock)
        self.reset()

    def reset(self) -> None:
        """Forget what is owed: what was sent last did not count."""
        self._memory = memory_of(self._like, error_feedback=self._error_feedback)
        self._sent = 0

    @property
    def slot_bytes(self) -> int:
        return self._format.slot_bytes

    def fill(self, slot: Tensor, gradients: Tensor) -> Traffic:
        """Put the gradients into the slot; what coding took, and what it saves."""
        with self._watch:
            corrected = self._memory.corrected(gradients[: self._end])
            payload = self._format.coder.encode(corrected, self._sent)
            if self._memory.remembers:
                self._memory.sent(self._format.coder.decode(payload, self._end, gradients.dtype))
            self._format.write(slot, payload, gradients[self._end :])
        self._sent += 1
        return replace(self._watch.traffic(), bytes_saved=self._format.saved_bytes)


def pusher_of(plan: Plan, arena: Arena, rank: Rank, clock: Clock) -> Pusher | None:
    """Pusher of compressed gradients; None: not compressed."""
    shape = push_format(plan, arena.layout, rank)
    if shape is None or plan.compress is None:
        return None
    return Pusher(shape, arena.gradient_part, error_feedback=plan.compress.error_feedback, clock=clock)
