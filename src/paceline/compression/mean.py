"""Means under compression: the lossy part by its codec, the rest exactly.

Buffers and the request to stop, behind the lossy part, are averaged as they are
in a short vector of their own. A memory that was saved by another number of
workers belongs to other pieces and other means, so it is forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from paceline.compression.codecs import Coder, Stopwatch, TopK, coder_of
from paceline.compression.error_feedback import memory_of
from paceline.compression.exchange import Exchange, ExchangeKind, RankVectors, Reduction, carry_out
from paceline.compression.low_rank import LowRankMean, parts_of
from paceline.compression.sparse import Dgc, GatheredMean, TopKSelection
from paceline.core.clock import Clock
from paceline.plan.plan import Codec, Compression, Plan
from paceline.transport.arena import ALIGN, Piece
from paceline.transport.ports import Collective, Traffic
from paceline.transport.torch_dist import ring_bytes


class LossyMean(Protocol):
    def reduction(self, part: Tensor) -> Reduction:
        """Replace the part by about its mean over all ranks; every rank then holds the same bits."""
        ...

    def snapshot(self) -> dict[str, Tensor]: ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...


# Each worker codes its vector in N pieces and sends piece r to rank r. Rank r
# decodes the N pieces that it got, averages them in rank order in full
# precision, encodes the mean once more, and every worker decodes all means.
# That is 2(N-1)/N payloads out and in, as for a ring; gathering N payloads would
# cost N-1. The piece's owner stores the error of the second coding.
# All workers decode the same bytes, so they end with the same bits.


class ScatteredMean:
    def __init__(
        self, coder: Coder, vectors: RankVectors, like: Tensor, *, error_feedback: bool, clock: Clock
    ) -> None:
        world = vectors.world_size
        self._numel = like.numel()
        self._dtype = like.dtype
        self._coder = coder
        self._rank = vectors.rank
        self._watch = Stopwatch(clock)
        self._pieces = split_by_rank(self._numel, world)
        self._slot_bytes = coder.payload_bytes(self._pieces[0].stop, self._dtype)
        self._outgoing = vectors.allocate(world * self._slot_bytes, torch.uint8)
        self._shared = vectors.allocate(self._slot_bytes, torch.uint8)
        own = like[self._pieces[vectors.rank]]
        self._first = memory_of(like, error_feedback=error_feedback)
        self._second = memory_of(own, error_feedback=error_feedback)
        self._round = 0

    def reduction(self, part: Tensor) -> Reduction:
        with self._watch:
            corrected = self._first.corrected(part)
            for rank, piece in enumerate(self._pieces):
                self._encode(corrected[piece], self._slot(self._outgoing, rank), message=rank)
            if self._first.remembers:
                self._first.sent(self._decoded(self._outgoing))
        (received,) = yield Exchange(ExchangeKind.SWAP, self._outgoing)
        with self._watch:
            self._encode(self._own_mean(received), self._shared, message=len(self._pieces))
            if self._second.remembers:
                self._second.sent(self._decode(self._shared, self._rank))
        payloads = yield Exchange(ExchangeKind.GATHER, self._shared)
        with self._watch:
            for rank, (piece, payload) in enumerate(zip(self._pieces, payloads, strict=True)):
                part[piece] = self._decode(payload, rank)
        self._round += 1
        return self._watch.traffic()

    def _own_mean(self, received: Tensor) -> Tensor:
        own = self._rank
        total = self._decode(self._slot(received, 0), own)
        for rank in range(1, len(self._pieces)):
            total += self._decode(self._slot(received, rank), own)
        return self._second.corrected(total.div_(len(self._pieces)))

    def _decoded(self, slots: Tensor) -> Tensor:
        """Our own message, as its receivers understand it."""
        return torch.cat([self._decode(self._slot(slots, rank), rank) for rank in range(len(self._pieces))])

    def _encode(self, numbers: Tensor, slot: Tensor, *, message: int) -> None:
        nonce = self._round * (len(self._pieces) + 1) + message
        payload = self._coder.encode(numbers, nonce)
        slot[: payload.numel()] = payload

    def _decode(self, slot: Tensor, piece: int) -> Tensor:
        """Pieces at the end may be shorter than their slot, or empty."""
        numel = self._pieces[piece].stop - self._pieces[piece].start
        payload = slot[: self._coder.payload_bytes(numel, self._dtype)]
        return self._coder.decode(payload, numel, self._dtype)

    def _slot(self, slots: Tensor, rank: int) -> Tensor:
        return slots[rank * self._slot_bytes : (rank + 1) * self._slot_bytes]

    def snapshot(self) -> dict[str, Tensor]:
        memories = {"first": self._first, "second": self._second}
        saved = {
            f"{stage}.{k}": t for stage, memory in memories.items() for k, t in memory.snapshot().items()
        }
        return saved | {"coded": torch.tensor([self._round])}

    def restore(self, saved: dict[str, Tensor]) -> None:
        for stage, memory in (("first", self._first), ("second", self._second)):
            own = {k.removeprefix(f"{stage}."): t for k, t in saved.items() if k.startswith(f"{stage}.")}
            memory.restore(own)
        self._round = int(saved["coded"])


def split_by_rank(numel: int, world_size: int) -> list[slice]:
    """A piece for each rank, equal but for the last ones, which may be shorter or empty."""
    share = -(-numel // (world_size * ALIGN)) * ALIGN
    return [slice(min(r * share, numel), min((r + 1) * share, numel)) for r in range(world_size)]


WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class CompressedVector:
    """One rank's vector, of which the first part is averaged lossily."""

    ranks: int
    vector: Tensor
    lossy_end: int
    lossy: LossyMean
    rest: Tensor | None  # where what follows the lossy part is averaged
    padding: Tensor  # the places between tensors, which belong to none

    def reduction(self) -> Reduction:
        """Replace the vector by its mean over all ranks."""
        part = self.vector[: self.lossy_end]
        coding = yield from self.lossy.reduction(part)
        if self.rest is not None:
            self.rest.copy_(self.vector[self.lossy_end :])
            yield Exchange(ExchangeKind.MEAN, self.rest)
            self.vector[self.lossy_end :] = self.rest
        # Nothing else writes there, so what a codec left would come back as next step's gradient.
        part.index_fill_(0, self.padding, 0.0)
        return coding

    def snapshot(self) -> dict[str, Tensor]:
        return {**self.lossy.snapshot(), WORKERS: torch.tensor([self.ranks])}

    def restore(self, saved: dict[str, Tensor]) -> None:
        if saved and int(saved[WORKERS]) == self.ranks:
            self.lossy.restore(saved)


@dataclass(frozen=True, slots=True)
class CompressedMean:
    collective: Collective
    own: CompressedVector
    is_lossy = True

    def reduce(self) -> Traffic:
        traffic = carry_out(self.own.reduction(), self.collective)
        plain = ring_bytes(self.own.vector.nbytes, self.collective.world_size)
        return replace(traffic, bytes_saved=plain - traffic.bytes_out)

    def snapshot(self) -> dict[str, Tensor]:
        return self.own.snapshot()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self.own.restore(saved)


def compressed_mean(
    plan: Plan,
    compress: Compression,
    collective: Collective,
    vector: Tensor,
    *,
    lossy_end: int,
    pieces: Sequence[Piece],
    clock: Clock,
) -> CompressedMean:
    """`vector` is from `allocate`; `pieces` are the tensors that lie in its lossy part."""
    own = compressed_vector(
        plan, compress, collective, vector, lossy_end=lossy_end, pieces=pieces, clock=clock
    )
    return CompressedMean(collective, own)


def compressed_vector(
    plan: Plan,
    compress: Compression,
    vectors: RankVectors,
    vector: Tensor,
    *,
    lossy_end: int,
    pieces: Sequence[Piece],
    clock: Clock,
) -> CompressedVector:
    """`pieces` are the tensors that lie in the lossy part of `vector`."""
    part = vector[:lossy_end]
    lossy = _lossy_mean(plan, compress, vectors, part, pieces, clock)
    after = vector.numel() - lossy_end
    rest = vectors.allocate(after, vector.dtype) if after else None
    padding = torch.tensor(_between(pieces, lossy_end), dtype=torch.int64, device=vector.device)
    return CompressedVector(vectors.world_size, vector, lossy_end, lossy, rest, padding)


def _between(pieces: Sequence[Piece], end: int) -> list[int]:
    """None are known when `pieces` are not: a split through tensors fills the whole vector again."""
    ends = [piece.start + piece.shape.numel() for piece in pieces]
    starts = [*(piece.start for piece in pieces[1:]), end]
    return [place for gap in zip(ends, starts, strict=False) for place in range(*gap)]


def _lossy_mean(
    plan: Plan,
    compress: Compression,
    vectors: RankVectors,
    part: Tensor,
    pieces: Sequence[Piece],
    clock: Clock,
) -> LossyMean:
    feedback = compress.error_feedback
    amount = compress.amount
    match compress.codec:
        case Codec.TOPK:
            assert amount is not None, "the plan sets the fraction of topk"
            return GatheredMean(
                TopKSelection(TopK(amount), part, error_feedback=feedback), vectors, clock=clock
            )
        case Codec.DGC:
            assert amount is not None, "the plan sets the fraction of dgc"
            clip = None if plan.clip_norm is None else plan.clip_norm / vectors.world_size**0.5
            selection = Dgc(part, part=amount, warmup=compress.warmup, clip=clip)
            return GatheredMean(selection, vectors, clock=clock)
        case Codec.POWERSGD:
            assert amount is not None, "the plan sets the rank of powersgd"
            parts = parts_of(part.numel(), pieces, round(amount))
            return LowRankMean(parts, vectors, part, error_feedback=feedback, seed=plan.seed, clock=clock)
        case _:
            coder = coder_of(compress, seed=plan.seed, rank=vectors.rank)
            return ScatteredMean(coder, vectors, part, error_feedback=feedback, clock=clock)
