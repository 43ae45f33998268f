"""Averaging schedules: periodic (LocalSGD), by fragment (DiLoCo) and by drawn clients (FedAvg).

Step numbers count finished steps, so a period of 4 averages after steps 4, 8,
12 … and once more after the last one. During the first `post_local_after` steps
every step averages (post-local SGD, Lin 2018). All schedules are pure functions,
so every worker computes them alone and gets the same result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from paceline.sync.rng import draw_u64


def averages_after(finished: int, *, total: int, every: int, post_local_after: int = 0) -> bool:
    """Whether the workers average once `finished` steps are done."""
    if finished >= total or finished <= post_local_after:
        return True
    return (finished - post_local_after) % every == 0


def round_end(done: int, *, total: int, every: int, post_local_after: int = 0) -> int:
    """The number of finished steps at the next averaging of workers that have finished `done`."""
    ends = (
        finished
        for finished in range(done + 1, total)
        if averages_after(finished, total=total, every=every, post_local_after=post_local_after)
    )
    return next(ends, total)


def mean_weight(rank: int, batch_sizes: Sequence[int]) -> float:
    """The factor before an unweighted mean that gives worker i the weight b_i / sum(b).

    Exactly 1.0 when all batches are equal, so that the common case changes no bit.
    """
    total = sum(batch_sizes)
    return batch_sizes[rank] * len(batch_sizes) / total


# Fragments (Streaming DiLoCo): the vector is split, each element in exactly one
# fragment. Fragment p is synced after steps o, o+H, o+2H … with o = p·H/P (H for
# the first), so each is synced exactly once in every H steps, and they take turns.

FRAGMENT_ALIGN = 16  # elements; a fragment begins on a cache line


def split_fragments(size: int, pieces: int) -> list[tuple[int, int]]:
    """(start, end) of each fragment. Never more fragments than there are cache lines."""
    lines = -(-size // FRAGMENT_ALIGN)
    pieces = min(pieces, max(1, lines))
    marks = [min(size, lines * number // pieces * FRAGMENT_ALIGN) for number in range(pieces + 1)]
    return list(pairwise(marks))


def starts_after(finished: int, fragment: int, *, every: int, fragments: int) -> bool:
    """Whether this fragment's sync starts once `finished` steps are done."""
    return finished > 0 and (finished - fragment * every // fragments) % every == 0


# Clients (FedAvg): a part of the workers that still have work is drawn from (seed,
# round); each of them makes `every` steps of its own work, or what is left of it.
# Rounds follow until all work is done, so the work of a run is the same as in any
# other mode.

_CLIENT_STREAM = 0xFEDA  # an RNG stream separate from those of stragglers and samples


def clients_drawn(seed: int, number: int, candidates: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` of the candidates (or all, if they are fewer) for round `number`, in order of rank."""
    shuffled = sorted(candidates, key=lambda rank: draw_u64(seed, _CLIENT_STREAM, number, rank))
    return tuple(sorted(shuffled[:count]))


def clients_per_round(fraction: float, num_workers: int) -> int:
    """The number of clients drawn: the fraction of all, rounded up, ignoring binary rounding errors."""
    return max(1, math.ceil(round(fraction * num_workers, 9)))


@dataclass(slots=True)
class Rounds:
    """The rounds of a federated run, one after another."""

    seed: int
    num_workers: int
    steps: int  # of every worker, in all rounds
    every: int
    count: int  # clients drawn for a round
    number: int = 0
    done: list[int] = field(init=False)  # steps, by worker

    def __post_init__(self) -> None:
        self.done = [0] * self.num_workers

    def current(self) -> dict[int, int]:
        """The steps of each drawn worker in this round; empty when all work is done."""
        working = [rank for rank, done in enumerate(self.done) if done < self.steps]
        drawn = clients_drawn(self.seed, self.number, working, self.count)
        return {rank: min(self.every, self.steps - self.done[rank]) for rank in drawn}

    def finish(self) -> None:
        for rank, steps in self.current().items():
            self.done[rank] += steps
        self.number += 1
