"""Which mean does a plan's compression make? The lossy part its own way, the rest exactly.

Buffers and the wish to stop, behind the lossy part, are averaged as they are
in a short vector of their own. A memory that was saved by another number of
workers belongs to other pieces and other means, so it is forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.compression.build import coder_of
from paceline.compression.dgc import Dgc
from paceline.compression.low_rank import LowRankMean, parts_of
from paceline.compression.part import LossyMean
from paceline.compression.scatter import ScatteredMean
from paceline.compression.sparse import GatheredMean, Largest
from paceline.compression.topk import TopK
from paceline.plan.plan import Codec, Compression, Plan
from paceline.transport.arena import Piece
from paceline.transport.ports import NO_TRAFFIC, Collective, Traffic
from paceline.transport.torch_dist import ring_bytes

WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class CompressedMean:
    collective: Collective
    vector: Tensor
    lossy_end: int
    lossy: LossyMean
    rest: Tensor | None  # where what follows the lossy part is averaged
    padding: Tensor  # the places between tensors, which belong to none
    is_lossy = True

    def reduce(self) -> Traffic:
        part = self.vector[: self.lossy_end]
        traffic = self.lossy.reduce(part) + self._reduce_rest()
        # Nobody writes there, so what a codec left would come back as next step's gradient.
        part.index_fill_(0, self.padding, 0.0)
        plain = ring_bytes(self.vector.nbytes, self.collective.world_size)
        return replace(traffic, bytes_saved=plain - traffic.bytes_out)

    def _reduce_rest(self) -> Traffic:
        if self.rest is None:
            return NO_TRAFFIC
        self.rest.copy_(self.vector[self.lossy_end :])
        traffic = self.collective.all_reduce_mean(self.rest)
        self.vector[self.lossy_end :] = self.rest
        return traffic

    def snapshot(self) -> dict[str, Tensor]:
        return {**self.lossy.snapshot(), WORKERS: torch.tensor([self.collective.world_size])}

    def restore(self, saved: dict[str, Tensor]) -> None:
        if saved and int(saved[WORKERS]) == self.collective.world_size:
            self.lossy.restore(saved)


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
    part = vector[:lossy_end]
    lossy = _lossy_mean(plan, compress, collective, part, pieces, clock)
    after = vector.numel() - lossy_end
    rest = collective.allocate(after, vector.dtype) if after else None
    padding = torch.tensor(_between(pieces, lossy_end), dtype=torch.int64, device=vector.device)
    return CompressedMean(collective, vector, lossy_end, lossy, rest, padding)


def _between(pieces: Sequence[Piece], end: int) -> list[int]:
    """None are known when `pieces` are not: whoever cuts through tensors fills the whole vector anew."""
    ends = [piece.start + piece.shape.numel() for piece in pieces]
    starts = [*(piece.start for piece in pieces[1:]), end]
    return [place for gap in zip(ends, starts, strict=False) for place in range(*gap)]


def _lossy_mean(
    plan: Plan,
    compress: Compression,
    collective: Collective,
    part: Tensor,
    pieces: Sequence[Piece],
    clock: Clock,
) -> LossyMean:
    feedback, amount = compress.error_feedback, compress.amount
    match compress.codec:
        case Codec.TOPK:
            assert amount is not None, "the plan says which part topk sends"
            return GatheredMean(Largest(TopK(amount), part, error_feedback=feedback), collective, clock=clock)
        case Codec.DGC:
            assert amount is not None, "the plan says which part dgc sends"
            clip = None if plan.clip_norm is None else plan.clip_norm / collective.world_size**0.5
            selection = Dgc(part, part=amount, warmup=compress.warmup, clip=clip)
            return GatheredMean(selection, collective, clock=clock)
        case Codec.POWERSGD:
            assert amount is not None, "the plan says of which rank powersgd is"
            parts = parts_of(part.numel(), pieces, round(amount))
            return LowRankMean(parts, collective, part, error_feedback=feedback, seed=plan.seed, clock=clock)
        case _:
            coder = coder_of(compress, seed=plan.seed, rank=collective.rank)
            return ScatteredMean(coder, collective, part, error_feedback=feedback, clock=clock)
