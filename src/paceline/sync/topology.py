"""Gossip topologies: the neighbours of each worker, and their mixing weights.

Between two workers that are neighbours both ways, Metropolis weights make the
matrix W symmetric and doubly stochastic on any graph: mixing keeps the mean of
all workers and brings them closer together by the factor λ₂(W) < 1. A worker
that sends along directed edges can only split what it has, so there the columns
sum to 1 and not the rows; push-sum makes up for that (Assran 2019).
"""

from dataclasses import dataclass
from enum import StrEnum

from paceline.sync.rng import draw_u64

_PARTNER_STREAM = 0x70616972  # an RNG stream separate from those of stragglers and dropout


class Topology(StrEnum):
    RING = "ring"
    TORUS = "torus"
    HYPERCUBE = "hypercube"
    STAR = "star"
    COMPLETE = "complete"
    EXPONENTIAL = "exponential"  # directed, and different at every step


@dataclass(frozen=True, slots=True)
class Mixing:
    """One worker's part in one mixing step."""

    weights: tuple[tuple[int, float], ...]  # of each source rank, by rank, this worker included
    targets: tuple[int, ...]  # ranks that receive this worker's vector, itself excluded

    @property
    def sources(self) -> tuple[int, ...]:
        return tuple(rank for rank, _ in self.weights)


def neighbours(topology: Topology, rank: int, num_workers: int) -> tuple[int, ...]:
    """The ranks that this worker exchanges vectors with, sorted."""
    match topology:
        case Topology.RING:
            ranks = {rank - 1, rank + 1}
        case Topology.TORUS:
            ranks = _on_torus(rank, num_workers)
        case Topology.HYPERCUBE:  # with corners missing when N is not a power of two
            ranks = {rank ^ (1 << bit) for bit in range(_bits(num_workers))}
            ranks = {other for other in ranks if other < num_workers}
        case Topology.STAR:
            ranks = set(range(1, num_workers)) if rank == 0 else {0}
        case Topology.COMPLETE:
            ranks = set(range(num_workers))
        case Topology.EXPONENTIAL:
            raise AssertionError("the exponential graph is directed: it has targets, not neighbours")
    return tuple(sorted({other % num_workers for other in ranks} - {rank}))


def metropolis_weights(topology: Topology, rank: int, num_workers: int) -> Mixing:
    """Weights 1 / (1 + the larger degree of the two); the worker's own weight is the rest to 1."""
    near = neighbours(topology, rank, num_workers)
    weights = {
        other: 1.0 / (1 + max(len(near), len(neighbours(topology, other, num_workers)))) for other in near
    }
    weights[rank] = 1.0 - sum(weights.values())
    return Mixing(tuple(sorted(weights.items())), near)


def push_weights(topology: Topology, rank: int, num_workers: int, step: int) -> Mixing:
    """Each worker keeps an equal part of its vector and sends as much to each of its targets."""
    if topology is Topology.EXPONENTIAL:
        hop = _hop(num_workers, step)
        if hop == 0:
            return Mixing(((rank, 1.0),), ())
        sources = sorted({rank, (rank - hop) % num_workers})
        return Mixing(tuple((source, 0.5) for source in sources), ((rank + hop) % num_workers,))
    near = neighbours(topology, rank, num_workers)
    weights = {other: 1.0 / (1 + len(neighbours(topology, other, num_workers))) for other in (*near, rank)}
    return Mixing(tuple(sorted(weights.items())), near)


def rounds_to_all(topology: Topology, num_workers: int) -> int:
    """The number of mixing steps, from any step on, that carries one worker's value to all."""
    match topology:
        case Topology.RING:
            return num_workers // 2
        case Topology.TORUS:
            rows, columns = _sides(num_workers)
            return rows // 2 + columns // 2
        case Topology.STAR:
            return min(2, num_workers - 1)
        case Topology.COMPLETE:
            return min(1, num_workers - 1)
        case Topology.HYPERCUBE | Topology.EXPONENTIAL:
            return _bits(num_workers)


def choose_partner(near: tuple[int, ...], *, seed: int, rank: int, step: int) -> int | None:
    """The neighbour that this worker averages with after this step; None when it has none."""
    return near[draw_u64(seed, _PARTNER_STREAM, rank, step) % len(near)] if near else None


def _hop(num_workers: int, step: int) -> int:
    """1, 2, 4 … cyclically: any log2(N) consecutive hops reach all workers."""
    bits = _bits(num_workers)
    return 1 << (step % bits) if bits else 0


def _bits(num_workers: int) -> int:
    return (num_workers - 1).bit_length()


def _sides(num_workers: int) -> tuple[int, int]:
    """The most nearly square rows and columns; one row, a ring, when N is prime."""
    rows = next(r for r in range(int(num_workers**0.5), 0, -1) if num_workers % r == 0)
    return rows, num_workers // rows


def _on_torus(rank: int, num_workers: int) -> set[int]:
    rows, columns = _sides(num_workers)
    row, column = divmod(rank, columns)
    in_row = {row * columns + (column + shift) % columns for shift in (-1, 1)}
    in_column = {(row + shift) % rows * columns + column for shift in (-1, 1)}
    return in_row | in_column
