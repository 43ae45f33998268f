"""Exchanges of a compressed mean, and how they are carried out.

A compressed mean is a generator, a `Reduction`: it yields every `Exchange` with the
other ranks that it needs, and is sent what it received. All ranks make the same
exchanges in the same order. So one rank can carry it out by a `Collective`, and a
worker of an elastic run can carry out those of several logical ranks in step, by
`LogicalRanks`; the arithmetic of a rank is the same.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from paceline.core.ids import Rank
from paceline.transport.ports import NO_TRAFFIC, Collective, LogicalRanks, Traffic


class ExchangeKind(Enum):
    MEAN = "mean"  # the vector becomes the mean over all ranks; nothing is received
    GATHER = "gather"  # all ranks' vectors, in their order
    SWAP = "swap"  # one vector: the pieces of all ranks' vectors that are for this rank


@dataclass(frozen=True, slots=True)
class Exchange:
    kind: ExchangeKind
    vector: Tensor  # from `allocate`


# Yields exchanges, is sent what they return, and returns what coding cost.
Reduction: TypeAlias = Generator[Exchange, list[Tensor], Traffic]


class RankVectors(Protocol):
    """One rank's vectors for exchanges."""

    @property
    def rank(self) -> Rank: ...

    @property
    def world_size(self) -> int: ...

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A vector that can be exchanged, zeroed."""
        ...


def carry_out(reduction: Reduction, collective: Collective) -> Traffic:
    """Of one rank, with the other ranks of the collective."""
    traffic = NO_TRAFFIC
    received = list[Tensor]()
    try:
        exchange = next(reduction)
        while True:
            received, cost = _exchanged(exchange, collective)
            traffic += cost
            exchange = reduction.send(received)
    except StopIteration as end:
        coding: Traffic = end.value
        return traffic + coding


def _exchanged(exchange: Exchange, collective: Collective) -> tuple[list[Tensor], Traffic]:
    match exchange.kind:
        case ExchangeKind.MEAN:
            return [], collective.all_reduce_mean(exchange.vector)
        case ExchangeKind.GATHER:
            return collective.gather(exchange.vector)
        case ExchangeKind.SWAP:
            received, traffic = collective.swap(exchange.vector)
            return [received], traffic


def carry_out_all(reductions: Sequence[Reduction], ranks: LogicalRanks) -> Traffic:
    """Of all logical ranks of this worker, which are at the same exchange at any time."""
    traffic = NO_TRAFFIC
    replies: list[list[Tensor]] | None = None
    while True:
        exchanges = list[Exchange]()
        for number, reduction in enumerate(reductions):
            try:
                exchanges.append(next(reduction) if replies is None else reduction.send(replies[number]))
            except StopIteration as end:
                coding: Traffic = end.value
                traffic += coding
        if not exchanges:
            return traffic
        replies, cost = _exchanged_by_all(exchanges, ranks)
        traffic += cost


def _exchanged_by_all(
    exchanges: Sequence[Exchange], ranks: LogicalRanks
) -> tuple[list[list[Tensor]], Traffic]:
    vectors = [exchange.vector for exchange in exchanges]
    match exchanges[0].kind:
        case ExchangeKind.MEAN:
            return [[] for _ in vectors], ranks.all_reduce_mean(vectors[0])
        case ExchangeKind.GATHER:
            gathered, traffic = ranks.gather(vectors[0])
            return [gathered for _ in vectors], traffic
        case ExchangeKind.SWAP:
            swapped, traffic = ranks.swap(vectors[0])
            return [[received] for received in swapped], traffic
