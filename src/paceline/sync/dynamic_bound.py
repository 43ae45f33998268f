"""How much further than the lower bound may a fast worker run right now? (DSSP, Zhao 2019, section 4)

From the two latest pushes of this worker and of the slowest it is foretold
when each will push next; the worker is let go for as many extra steps as make
it wait least, at most `extra`. What it was granted holds until it is within
the lower bound again. So the bound that a worker meets is always at least the
lower one, and at most the lower one plus `extra`. The server and the
simulator ask the same `Controller`.
"""

from dataclasses import dataclass, field

from paceline.ids import Clock, Rank
from paceline.sync.admission import Held, slowest


@dataclass(slots=True)
class Controller:
    extra: int
    num_workers: int
    granted: list[int] = field(init=False)  # extra steps, by worker
    _pushed_ns: list[int | None] = field(init=False)
    _interval_ns: list[int | None] = field(init=False)  # between the two latest pushes

    def __post_init__(self) -> None:
        self.granted = [0] * self.num_workers
        self._pushed_ns = [None] * self.num_workers
        self._interval_ns = [None] * self.num_workers

    def note(self, rank: int, now_ns: int, *, beyond: int, slowest: int) -> None:
        """This worker has pushed, and is now `beyond` steps past the lower bound (0 or less: within it)."""
        before = self._pushed_ns[rank]
        self._interval_ns[rank] = None if before is None else now_ns - before
        self._pushed_ns[rank] = now_ns
        if beyond <= 0:
            self.granted[rank] = 0
        elif self.granted[rank] == 0:
            self.granted[rank] = self._best(rank, slowest)

    def _best(self, rank: int, slowest: int) -> int:
        mine_ns, theirs_ns = self._interval_ns[rank], self._interval_ns[slowest]
        own, last = self._pushed_ns[rank], self._pushed_ns[slowest]
        if not mine_ns or not theirs_ns or own is None or last is None:
            return 0  # one of them has not pushed twice yet: nothing can be foretold
        ahead_ns, step_ns, period_ns = own - last, mine_ns, theirs_ns

        def wait_ns(more: int) -> int:
            """From this worker's push after `more` steps to the slowest one's next."""
            return -(ahead_ns + more * step_ns) % period_ns

        return min(range(self.extra + 1), key=wait_ns)


@dataclass(slots=True)
class DynamicBounded:
    """The rule of a server: like `Bounded`, with a bound of its own for each worker and moment."""

    low: int
    controller: Controller

    def note(self, rank: Rank, now_ns: int, clocks: dict[Rank, Clock]) -> None:
        last = min(clocks, key=lambda other: (clocks[other], other))
        beyond = clocks[rank] - clocks[last] - self.low
        self.controller.note(rank, now_ns, beyond=beyond, slowest=last)

    def admit(self, held: list[Held], clocks: dict[Rank, Clock]) -> tuple[tuple[Held, ...], ...]:
        low = slowest(clocks)
        return tuple((h,) for h in held if low is None or h.index + 1 - low <= self.bound_of(h.rank))

    def may_start(self, clock: Clock, clocks: dict[Rank, Clock]) -> bool:
        """Whose update was admitted may go on; who joins has at most the run of the whole range."""
        low = slowest(clocks)
        return low is None or clock - low <= self.low + self.controller.extra

    def bound_of(self, rank: Rank) -> int:
        """The bound that this worker meets right now."""
        return self.low + self.controller.granted[rank]
