"""How much further than the lower bound may a fast worker run right now? (DSSP, Zhao 2019, section 4)

From the latest interval between pushes of this worker and of the slowest it is
foretold when each will push next; the worker is let go for as many extra steps
as make it wait least, at most `extra`.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Controller:
    extra: int
    num_workers: int
    granted: list[int] = field(init=False)  # extra steps, by worker
    _pushed_ns: list[int] = field(init=False)
    _interval_ns: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.granted = [0] * self.num_workers
        self._pushed_ns = [0] * self.num_workers
        self._interval_ns = [0] * self.num_workers

    def note(self, rank: int, now_ns: int, *, is_within: bool) -> None:
        """This worker has pushed, and is (or is not) within the lower bound again."""
        self._interval_ns[rank] = now_ns - self._pushed_ns[rank]
        self._pushed_ns[rank] = now_ns
        if is_within:
            self.granted[rank] = 0

    def lets_go(self, rank: int, beyond: int, slowest: int) -> bool:
        """May this worker go on, `beyond` steps past the lower bound?"""
        if self.granted[rank] == 0:
            self.granted[rank] = self._best(rank, slowest)
        return beyond <= self.granted[rank]

    def _best(self, rank: int, slowest: int) -> int:
        theirs_ns = self._interval_ns[slowest]
        if theirs_ns <= 0:
            return 0  # the slowest has not pushed yet: nothing is known
        behind_ns = self._pushed_ns[rank] - self._pushed_ns[slowest]

        def wait_ns(more: int) -> int:
            return -(behind_ns + more * self._interval_ns[rank]) % theirs_ns

        return min(range(self.extra + 1), key=wait_ns)
