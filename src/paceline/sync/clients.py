"""Which workers take part in a round of federated averaging, and for how many steps?

A part of those who still have work is drawn by dice from (seed, round); each of
them makes `every` steps of its own work, or what is left of it. Rounds follow
until all work is done. So everybody can work out every round alone, and the
work of a run is the same as in any other mode.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.sync.dice import draw_u64

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
