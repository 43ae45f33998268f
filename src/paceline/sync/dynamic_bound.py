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
    extra: int  # steps beyond the lower bound, at most
    num_workers: int
    granted: list[int] = field(init=False)  # extra steps that each worker may make now
    # Each worker's latest push, and the one before. The simulator keeps them itself: it cannot afford a call.
    pushed_ns: list[int | None] = field(init=False)
    before_ns: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.granted = [0] * self.num_workers
        self.pushed_ns = [None] * self.num_workers
        self.before_ns = [None] * self.num_workers

    def note(self, rank: int, now_ns: int, *, beyond: int, slowest: int) -> None:
        """This worker has pushed, and is now `beyond` steps past the lower bound (0 or less: within it)."""
        self.before_ns[rank], self.pushed_ns[rank] = self.pushed_ns[rank], now_ns
        if beyond <= 0:
            self.granted[rank] = 0
        elif self.granted[rank] == 0:
            self.grant(rank, slowest)

    def grant(self, rank: int, slowest: int) -> int:
        """This worker is beyond the lower bound, and nothing is granted yet: how many steps may it go?"""
        best = self.granted[rank] = self._best(rank, slowest)
        return best

    def _best(self, rank: int, slowest: int) -> int:
        own, own_before = self.pushed_ns[rank], self.before_ns[rank]
        last, last_before = self.pushed_ns[slowest], self.before_ns[slowest]
        if own is None or own_before is None or last is None or last_before is None:
            return 0  # one of them has not pushed twice yet: nothing can be foretold
        ahead_ns, step_ns, period_ns = own - last, own - own_before, last - last_before
        if not step_ns or not period_ns:
            return 0
        wait_ns = shortest_ns = -ahead_ns % period_ns
        best = 0
        for more in range(1, self.extra + 1):
            # From this worker's push after `more` steps to the slowest one's next.
            wait_ns = (wait_ns - step_ns) % period_ns
            if wait_ns < shortest_ns:
                shortest_ns, best = wait_ns, more
        return best


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
