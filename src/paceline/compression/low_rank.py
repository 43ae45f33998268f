"""PowerSGD (Vogels 2019, arXiv 1905.13727): a matrix is sent as two thin ones.

P = MQ is averaged and made orthonormal, Q = MᵀP is averaged, and PQᵀ stands
for the mean of M: r(n+m) numbers for nm. Q begins the same on every worker and
is kept for the next time (one step of power iteration each), so it follows the
gradient's largest directions. Tensors that are no matrices, or for which two
thin ones would not be smaller, are averaged as they are, along with P.

What is owed is M minus what P makes of our own M. The paper subtracts what it
makes of the mean; over all workers the two add up to the same, but ours does
not also collect how far a worker's gradients are from the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.compression.codecs import Stopwatch
from paceline.compression.error_feedback import memory_of
from paceline.compression.exchange import Exchange, ExchangeKind, RankVectors, Reduction
from paceline.core.clock import Clock
from paceline.sync.rng import draw_u64
from paceline.transport.arena import Piece


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stretch of the vector that is a matrix, and where its thin ones lie in what is averaged."""

    start: int
    rows: int
    columns: int
    left: int  # where its P begins
    right: int  # where its Q begins

    def view(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class Parts:
    """The vector as matrices, and as stretches that are averaged as they are."""

    matrices: tuple[Matrix, ...]
    plain: tuple[slice, ...]
    rank: int

    @property
    def left_numel(self) -> int:
        """Of all P, and of what is averaged as it is."""
        return sum(m.rows for m in self.matrices) * self.rank + self.plain_numel

    @property
    def right_numel(self) -> int:
        return sum(m.columns for m in self.matrices) * self.rank

    @property
    def plain_numel(self) -> int:
        return sum(stretch.stop - stretch.start for stretch in self.plain)


def parts_of(numel: int, pieces: Sequence[Piece], rank: int) -> Parts:
    matrices = list[Matrix]()
    plain = list[slice]()
    end = 0
    left = 0
    right = 0
    for piece in pieces:
        rows, columns = _as_matrix(piece.shape)
        if rank * (rows + columns) >= rows * columns:
            continue
        if piece.start > end:
            plain.append(slice(end, piece.start))
        matrices.append(Matrix(piece.start, rows, columns, left, right))
        end = piece.start + rows * columns
        left = left + rows * rank
        right = right + columns * rank
    if numel > end:
        plain.append(slice(end, numel))
    return Parts(tuple(matrices), tuple(plain), rank)


def _as_matrix(shape: torch.Size) -> tuple[int, int]:
    rows = shape[0] if shape else 1
    return rows, shape.numel() // max(1, rows)


class LowRankMean:
    def __init__(
        self,
        parts: Parts,
        vectors: RankVectors,
        like: Tensor,
        *,
        error_feedback: bool,
        seed: int,
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._watch = Stopwatch(clock)
        self._memory = memory_of(like, error_feedback=error_feedback)
        self._left = vectors.allocate(parts.left_numel, like.dtype)
        self._right: Tensor | None = None
        if parts.matrices:
            self._right = vectors.allocate(parts.right_numel, like.dtype)
            self._right.copy_(_first_right(parts.right_numel, seed).to(like.dtype))

    def reduction(self, part: Tensor) -> Reduction:
        if self._right is None:
            return (yield from self._average_plain(part))
        parts = self._parts
        left = self._left
        right = self._right
        with self._watch:
            corrected = self._memory.corrected(part)
            for m in parts.matrices:
                torch.mm(
                    m.view(corrected),
                    self._thin(right, m.right, m.columns),
                    out=self._thin(left, m.left, m.rows),
                )
            self._put_plain(corrected)
        yield Exchange(ExchangeKind.MEAN, left)
        with self._watch:
            self._orthonormal()
            for m in parts.matrices:
                torch.mm(
                    m.view(corrected).T,
                    self._thin(left, m.left, m.rows),
                    out=self._thin(right, m.right, m.columns),
                )
            if self._memory.remembers:
                self._memory.sent(self._made_of(corrected.clone()))
        yield Exchange(ExchangeKind.MEAN, right)
        with self._watch:
            self._take_plain(part)
            self._made_of(part)
        return self._watch.traffic()

    def _average_plain(self, part: Tensor) -> Reduction:
        self._left.copy_(part)
        yield Exchange(ExchangeKind.MEAN, self._left)
        part.copy_(self._left)
        return self._watch.traffic()

    def _made_of(self, target: Tensor) -> Tensor:
        """The matrices in `target` become PQᵀ; the rest of it stays."""
        assert self._right is not None, "there are matrices"
        for m in self._parts.matrices:
            thin_left = self._thin(self._left, m.left, m.rows)
            torch.mm(thin_left, self._thin(self._right, m.right, m.columns).T, out=m.view(target))
        return target

    def _orthonormal(self) -> None:
        for m in self._parts.matrices:
            thin = self._thin(self._left, m.left, m.rows)
            thin.copy_(torch.linalg.qr(thin).Q)

    def _put_plain(self, corrected: Tensor) -> None:
        if self._parts.plain:
            torch.cat([corrected[s] for s in self._parts.plain], out=self._plain_part())

    def _take_plain(self, part: Tensor) -> None:
        sizes = [s.stop - s.start for s in self._parts.plain]
        for stretch, mean in zip(self._parts.plain, torch.split(self._plain_part(), sizes), strict=True):
            part[stretch] = mean

    def _plain_part(self) -> Tensor:
        return self._left[self._left.numel() - self._parts.plain_numel :]

    def _thin(self, flat: Tensor, start: int, length: int) -> Tensor:
        return flat[start : start + length * self._parts.rank].view(length, self._parts.rank)

    def snapshot(self) -> dict[str, Tensor]:
        right = {} if self._right is None else {"right": self._right}
        return self._memory.snapshot() | right

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._memory.restore(saved)
        if self._right is not None:
            self._right.copy_(saved["right"])


def _first_right(numel: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(draw_u64(seed) >> 1)
    return torch.randn(numel, generator=generator, dtype=torch.float64)
