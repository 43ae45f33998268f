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
    """Do the workers average once `finished` steps are done?"""
    if finished >= total or finished <= post_local_after:
        return True
    return (finished - post_local_after) % every == 0


def round_end(done: int, *, total: int, every: int, post_local_after: int = 0) -> int:
    """How many steps are finished when workers that have `done` of them average next."""
    ends = (
        finished
        for finished in range(done + 1, total)
        if averages_after(finished, total=total, every=every, post_local_after=post_local_after)
    )
    return next(ends, total)


def mean_weight(rank: int, batch_sizes: Sequence[int]) -> float:
    """What to multiply by before an unweighted mean, so that it becomes b_i / sum(b).

    Exactly 1.0 when all batches are equal, so that the common case changes no bit.
    """
    total = sum(batch_sizes)
    return batch_sizes[rank] * len(batch_sizes) / total


# The vector is cut into stretches, each element in exactly one. Fragment p is
# synced after steps o, o+H, o+2H … with o = p·H/P (H for the first), so each is
# synced exactly once in every H steps, and they take turns.

FRAGMENT_ALIGN = 16  # elements; a stretch begins on a cache line


def split_fragments(size: int, pieces: int) -> list[tuple[int, int]]:
    """(start, end) of each stretch. Never more stretches than there are cache lines."""
    lines = -(-size // FRAGMENT_ALIGN)
    pieces = min(pieces, max(1, lines))
    marks = [min(size, lines * number // pieces * FRAGMENT_ALIGN) for number in range(pieces + 1)]
    return list(pairwise(marks))


def starts_after(finished: int, fragment: int, *, every: int, fragments: int) -> bool:
    """Is this fragment's sync begun once `finished` steps are done?"""
    return finished > 0 and (finished - fragment * every // fragments) % every == 0


# A part of those who still have work is drawn by dice from (seed, round); each of
# them makes `every` steps of its own work, or what is left of it. Rounds follow
# until all work is done. So everybody can work out every round alone, and the
# work of a run is the same as in any other mode.

_DRAWING = 0xFEDA  # keeps these dice apart from those of stragglers and samples


def clients_drawn(seed: int, number: int, candidates: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` of the candidates (or all, if they are fewer) for round `number`, in order of rank."""
    by_luck = sorted(candidates, key=lambda rank: draw_u64(seed, _DRAWING, number, rank))
    return tuple(sorted(by_luck[:count]))


def clients_per_round(fraction: float, num_workers: int) -> int:
    """How many are drawn: the fraction of all, rounded up, whatever binary fractions make of it."""
    return max(1, math.ceil(round(fraction * num_workers, 9)))


@dataclass(slots=True)
class Rounds:
    """The rounds of a run, one after another."""

    seed: int
    num_workers: int
    steps: int  # that every worker makes in all
    every: int
    count: int  # drawn for a round
    number: int = 0
    done: list[int] = field(init=False)  # steps, by worker

    def __post_init__(self) -> None:
        self.done = [0] * self.num_workers

    def current(self) -> dict[int, int]:
        """How many steps each worker that is drawn makes in this round; empty when all work is done."""
        working = [rank for rank, done in enumerate(self.done) if done < self.steps]
        drawn = clients_drawn(self.seed, self.number, working, self.count)
        return {rank: min(self.every, self.steps - self.done[rank]) for rank in drawn}

    def finish(self) -> None:
        for rank, steps in self.current().items():
            self.done[rank] += steps
        self.number += 1
