"""Into which parts is a vector cut, one for each pair of parameter servers?

Contiguous slices of about equal length, cut anywhere, also within a tensor, but
on the boundaries of the arena: each number then goes through the same
instructions as in the whole vector. The last slice, with the buffers and the
tail behind it, is part 0's, which keeps everything that is not parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from paceline.errors import HopelessError
from paceline.transport.arena import ALIGN, Layout, Piece


def slices_of(layout: Layout, parts: int) -> tuple[slice, ...]:
    """By part, the place of its slice in the vector."""
    blocks = layout.buffers_start // ALIGN
    if blocks < parts:
        raise HopelessError(
            f"the model has {blocks} blocks of {ALIGN} numbers, too few for {parts} parts",
            f"use --servers {max(1, blocks)} or less",
        )
    cuts = [blocks * number // parts * ALIGN for number in range(parts)]
    others = (slice(start, end) for start, end in pairwise(cuts))
    return (slice(cuts[-1], layout.numel), *others)


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a tensor lies in a slice."""

    name: str  # of the tensor
    first: int  # of its numbers
    numel: int
    start: int  # where it lies in the whole vector

    @property
    def in_tensor(self) -> slice:
        return slice(self.first, self.first + self.numel)

    @property
    def in_vector(self) -> slice:
        return slice(self.start, self.start + self.numel)


def cut(pieces: Sequence[Piece], where: slice) -> tuple[Cut, ...]:
    """What of these tensors lies there, in order."""
    found = []
    for piece in pieces:
        start = max(piece.start, where.start)
        end = min(piece.start + piece.shape.numel(), where.stop)
        if start < end:
            found.append(Cut(piece.name, start - piece.start, end - start, start))
    return tuple(found)
