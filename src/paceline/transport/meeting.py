"""How does everybody know that all have come? Each posts to all others, and waits for as many posts."""

from paceline.clock import Clock
from paceline.transport.memory_world import MemoryWorld

PLACES = 2  # used in turn, so that a fast one's next arrival is not miscounted


class Meeting:
    """Meetings of all parties of a world, at two of its places to wait."""

    def __init__(
        self, world: MemoryWorld, rank: int, *, clock: Clock, timeout_s: float, first_place: int = 0
    ) -> None:
        self._world, self._rank, self._first = world, rank, first_place
        self._clock, self._timeout_s = clock, timeout_s
        self._count = 0

    def meet(self) -> int:
        """Return once all are here; how long that took, in nanoseconds."""
        which = self._first + (self._count & 1)
        self._count += 1
        for other in range(self._world.parties):
            if other != self._rank:
                self._world.post(other, which)
        started_ns = self._clock.now_ns()
        for _ in range(self._world.parties - 1):
            self._world.wait(self._rank, which, self._timeout_s, what="the other workers")
        return self._clock.now_ns() - started_ns
