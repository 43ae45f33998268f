"""Means over the slots of shards other than the exact one: compressed, or robust against bad shards.

Each is bit by bit that of the plain mode with one worker per shard, for any number
of workers, because no step of it depends on which worker computed a shard.

Compressed: every shard is a logical rank with its own error memory. A worker carries
out equally many ranks, whichever shards it computed. On one host the memories of all
ranks lie in the generation's memory at each commit, where survivors find those of
lost workers: then a memory is never reset, and is part of what a new worker receives
and of checkpoints. Over the network memories stay with their workers, and all of them
are empty at the begin of a generation.

Robust: every worker aggregates all slots by itself.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from paceline.checkpoints.snapshot import Snapshot, from_bytes, to_bytes
from paceline.compression.exchange import carry_out_all
from paceline.compression.mean import CompressedVector, compressed_vector
from paceline.core.ids import Rank
from paceline.plan.plan import Plan
from paceline.strategies.port import Links
from paceline.strategies.robust import VectorAggregation, build_aggregation
from paceline.transport.arena import Layout
from paceline.transport.ports import LogicalRanks, Rounds, Traffic

_MEMORY = "memory"


class SlotMean(Protocol):
    def reduce(self, filled: Collection[int], mean: Tensor) -> Traffic:
        """Write the mean into this worker's vector `mean`, once all slots are filled.

        `filled`: the shards whose slots this worker has filled. it returns, all workers have
        the mean, and slots may be filled again.
        """
        ...

    def undo(self) -> None:
        """The generation has ended: keep what was committed outside of its memory."""
        ...

    def snapshot(self) -> dict[str, Tensor]: ...


def slot_mean_of(
    plan: Plan, links: Links, slots: Sequence[Tensor], layout: Layout, saved: Mapping[str, Tensor]
) -> SlotMean | None:
    """The plan's mean of gradients; None: the exact mean of `Shards`."""
    if plan.compress is not None:
        return CompressedSlots(plan, links, slots, layout, saved)
    aggregation = build_aggregation(plan, layout)
    return None if aggregation is None else RobustSlots(links, slots, aggregation)


class CompressedSlots:
    def __init__(
        self, plan: Plan, links: Links, slots: Sequence[Tensor], layout: Layout, saved: Mapping[str, Tensor]
    ) -> None:
        """`saved` contains what `snapshot` returned, unless nothing was committed before."""
        assert plan.compress is not None, "the mean is compressed"
        assert links.rounds is not None, "error memories are kept where survivors find them"
        assert links.ranks is not None, "a compressed mean has exchanges"
        self._rounds: Rounds = links.rounds
        self._ranks: LogicalRanks = links.ranks
        self._memories = links.rounds.memories
        self._has_states = plan.mode != "ssgd"
        self._slots = slots
        self._vectors = {
            rank: compressed_vector(
                plan,
                plan.compress,
                _OneRank(links.ranks, Rank(rank)),
                slots[rank],
                lossy_end=layout.buffers_start,
                pieces=layout.parameters,
                clock=links.clock,
            )
            for rank in links.ranks.own
        }
        self._kept = [saved[name] for name in map(_name_of, range(len(slots))) if name in saved]
        if self._kept:
            for rank, vector in self._vectors.items():
                _restore(vector, self._kept[rank])

    def reduce(self, filled: Collection[int], mean: Tensor) -> Traffic:
        traffic, _ = self.commit(filled, {}, mean)
        return traffic

    def commit(
        self, filled: Collection[int], states: Mapping[int, bytes], mean: Tensor
    ) -> tuple[Traffic, list[Tensor]]:
        """Like `reduce`, and publish the states of this worker's shards; returns those of all shards."""
        coded = self._ranks.collect(self._slots, filled, everywhere=False)
        coded += carry_out_all([vector.reduction() for vector in self._vectors.values()], self._ranks)
        saved = self._ranks.plain_bytes(mean) - coded.bytes_out
        mean.copy_(self._slots[self._ranks.own.start])  # all ranks' are equal now
        entries = dict(states) if self._has_states else dict.fromkeys(self._ranks.own, b"")
        for rank, vector in self._vectors.items():
            if self._memories:
                memory = to_bytes(Snapshot(vector.snapshot(), {}))
                entries[self._memories.start + rank] = memory
        published, kept = self._rounds.commit(entries)
        self._kept = kept[self._memories.start : self._memories.stop]
        return replace(coded, bytes_saved=saved) + published, kept[: len(self._slots)]

    def undo(self) -> None:
        self._kept = [kept.clone() for kept in self._kept]

    def snapshot(self) -> dict[str, Tensor]:
        return {_name_of(rank): kept for rank, kept in enumerate(self._kept)}


class _OneRank:
    """The vectors of one logical rank."""

    def __init__(self, ranks: LogicalRanks, rank: Rank) -> None:
        self._ranks = ranks
        self.rank = rank
        self.world_size = ranks.world_size

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._ranks.allocate(self.rank, numel, dtype)


def _name_of(rank: int) -> str:
    return f"{_MEMORY}.{rank}"


def _restore(vector: CompressedVector, kept: Tensor) -> None:
    vector.restore(from_bytes(kept.numpy().tobytes()).tensors)


class RobustSlots:
    def __init__(self, links: Links, slots: Sequence[Tensor], aggregation: VectorAggregation) -> None:
        assert links.rounds is not None, "a step is committed by all workers"
        assert links.ranks is not None, "every worker needs all slots"
        self._rounds: Rounds = links.rounds
        self._ranks: LogicalRanks = links.ranks
        self._slots = slots
        self._aggregation = aggregation

    def reduce(self, filled: Collection[int], mean: Tensor) -> Traffic:
        traffic = self._ranks.collect(self._slots, filled, everywhere=True)
        self._aggregation.into(mean, self._slots)
        start = self._aggregation.layout.tail_start
        # Any shard's worker may request a stop: the flags are averaged, so that one of them is enough.
        mean[start:] = torch.stack([slot[start:] for slot in self._slots]).mean(dim=0)
        committed, _ = self._rounds.commit(dict.fromkeys(self._ranks.own, b""))
        return traffic + committed

    def undo(self) -> None: ...

    def snapshot(self) -> dict[str, Tensor]:
        return {}
