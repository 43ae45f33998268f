"""What would a step have taken under another setting, in a window of steps that were seen?

A step at which all meet takes as long as its slowest worker, a round of local
steps as long as the slowest sum. Steps that are missing are taken again. A
decision asks for the same settings more than once, and a simulator decides very
often: so nothing is computed twice, and whole rows at a time.
"""

from collections.abc import Sequence
from itertools import islice
from operator import add, getitem

import numpy as np
from numpy.typing import NDArray

from paceline.sync.setting import Setting, Terms, Way

KEPT = 16  # of each worker's latest steps

Window = Sequence[Sequence[float]]  # by worker: seconds per sample of its latest steps


class Hindsight:
    def __init__(self, window: Window, terms: Terms) -> None:
        self._window, self._terms = window, terms
        self._rows, self._shortest = window, min(map(len, window))
        self._known: dict[tuple[bool, tuple[int, ...]], float] = {}
        self._matrix: NDArray[np.float64] | None = None  # workers in rows, once it is needed

    def step_s(self, setting: Setting) -> float:
        """What a step of the run would have taken."""
        key = (setting.way is Way.LOCAL_STEPS, setting.shares)
        if (found := self._known.get(key)) is None:
            found = self._known[key] = self._in_rounds(key[1]) if key[0] else self._step_by_step(key[1])
        return found

    def _step_by_step(self, shares: tuple[int, ...]) -> float:
        steps = max(map(len, self._window))
        slowest: list[float]
        if len(set(shares)) == 1:  # whoever is slowest per sample is slowest
            columns = islice(zip(*self._repeated(steps), strict=False), steps)
            slowest = [own * shares[0] for own in map(max, columns)]
        else:
            if self._matrix is None:
                self._matrix = np.array([own[:steps] for own in self._repeated(steps)])
            slowest = (self._matrix * np.array(shares)[:, None]).max(axis=0).tolist()
        return sum(slowest) / steps

    def _in_rounds(self, shares: tuple[int, ...]) -> float:
        period = self._terms.period
        rounds = max(1, KEPT // period)
        rows = self._repeated(rounds * max(shares))
        ends, took_s = [0] * len(shares), 0.0
        for _ in range(rounds):
            begins, ends = ends, list(map(add, ends, shares))
            took_s += max(map(sum, map(getitem, rows, map(slice, begins, ends))))
        return took_s * self._terms.batch_sizes[0] / (rounds * period)

    def _repeated(self, count: int) -> Window:
        """At least so many steps of each worker, again and again."""
        if self._shortest < count:
            count = max(count, 2 * KEPT)  # more will be asked for
            self._rows = [[*own] * -(-count // len(own)) for own in self._window]
            self._shortest = count
        return self._rows
