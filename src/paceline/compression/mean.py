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
    is_lossy = True

    def reduce(self) -> Traffic:
        traffic = self.lossy.reduce(self.vector[: self.lossy_end]) + self._reduce_rest()
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
    return CompressedMean(collective, vector, lossy_end, lossy, rest)


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
