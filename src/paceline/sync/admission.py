"""Admission rules of a parameter server: when an update is applied, and which workers read next.

A worker's clock is the number of gradients it has pushed. Its update with
index k is *held* until the rule admits it; only then is it applied, and only
then does the worker get parameters for its next step.

- unbounded (asgd): admitted at once.
- bounded by s (ssp): admitted once k <= slowest + s - 1, that is, once the
  pusher may start again. No worker ever reads an update from a worker that is
  beyond the bound. This versioned read makes s = 0 equal to synchronous SGD;
  "apply on push" would not.
- dynamic bound (dssp): the same, with a bound per worker (`BoundController`).
- barrier (ps): all workers' updates are admitted together, as one mean.
- first arrivals (backup): the first K updates on a version are admitted, as
  one mean; workers that still compute on that version abandon their step.

Released updates are applied in (index, rank) order, so the result of a bound of
0 or a barrier does not depend on arrival order. See docs/concepts/staleness.md.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from paceline.core.ids import Clock, Rank, Step


@dataclass(frozen=True, slots=True)
class Held:
    """A pushed update that waits for admission."""

    rank: Rank
    index: Step


@dataclass(frozen=True, slots=True)
class Release:
    """The server's next actions: apply each group as one update, in order; then answer the readers."""

    groups: tuple[tuple[Held, ...], ...] = ()
    readers: tuple[Rank, ...] = ()
    late: tuple[Rank, ...] = ()  # they must abandon their current step


class Rule(Protocol):
    """An admission rule; evaluated again whenever a clock has moved."""

    def admit(self, held: list[Held], clocks: dict[Rank, Clock]) -> tuple[tuple[Held, ...], ...]:
        """The held updates that are applied now, in groups."""
        ...

    def may_start(self, clock: Clock, clocks: dict[Rank, Clock]) -> bool:
        """Whether a worker with this clock, whose update is applied, may read and start its next step."""
        ...


@runtime_checkable
class ObservesPushes(Protocol):
    """A rule that also records when each push arrives (dssp)."""

    def note(self, rank: Rank, now_ns: int, clocks: dict[Rank, Clock]) -> None: ...


def slowest(clocks: dict[Rank, Clock]) -> Clock | None:
    """The smallest clock; None when no worker is left."""
    return min(clocks.values(), default=None)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Stale synchronous parallel (Ho 2013). `bound=None` is plain asynchronous SGD."""

    bound: int | None

    def admit(self, held: list[Held], clocks: dict[Rank, Clock]) -> tuple[tuple[Held, ...], ...]:
        return tuple((h,) for h in held if self.may_start(Clock(h.index + 1), clocks))

    def may_start(self, clock: Clock, clocks: dict[Rank, Clock]) -> bool:
        low = slowest(clocks)
        return self.bound is None or low is None or clock - low <= self.bound


@dataclass(frozen=True, slots=True)
class Barrier:
    """A synchronous server: one mean of all workers' gradients per step."""

    def admit(self, held: list[Held], clocks: dict[Rank, Clock]) -> tuple[tuple[Held, ...], ...]:
        if not held:
            return ()
        low = slowest(clocks)
        first = held[0].index
        if low is not None and low <= first:
            return ()
        return (tuple(h for h in held if h.index == first),)

    def may_start(self, clock: Clock, clocks: dict[Rank, Clock]) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FirstArrivals:
    """Backup workers (Chen 2016): one mean of the first `needed` gradients; late workers abandon theirs.

    Every held update was computed on the current version: late workers were stopped when it was made.
    """

    needed: int

    def admit(self, held: list[Held], clocks: dict[Rank, Clock]) -> tuple[tuple[Held, ...], ...]:
        return (tuple(held),) if held and len(held) >= min(self.needed, len(clocks)) else ()

    def may_start(self, clock: Clock, clocks: dict[Rank, Clock]) -> bool:
        return True


@dataclass(slots=True)
class Admission:
    """The server's state of all workers. Call it with joins, pushes and leaves in order.

    `clocks` begins with every expected worker: one that has not joined yet
    blocks the others just as a slow one does.
    """

    rule: Rule
    clocks: dict[Rank, Clock]  # of the workers that take part; those that left are removed
    held: dict[Rank, Held] = field(default_factory=dict)
    waiting: list[Rank] = field(default_factory=list)  # they have no held update and want to read
    computing: set[Rank] = field(default_factory=set)  # they have read, and their gradient counts
    abandoned: set[Rank] = field(default_factory=set)  # they were sent Obsolete and have not answered yet
    is_exhausted: bool = False  # no share is left: a worker without one will contribute nothing

    @property
    def takes_back(self) -> bool:
        """Whether an assigned share may be done by another worker."""
        return isinstance(self.rule, FirstArrivals)

    def join(self, rank: Rank, clock: Clock) -> Release:
        """A worker has started (or resumed) after `clock` gradients, and wants to read."""
        self.clocks[rank] = clock
        self.waiting.append(rank)
        return self._release()

    def push(self, rank: Rank, *, now_ns: int = 0, steps: int = 1) -> Release:
        """This worker pushes an update made of `steps` steps since its last read."""
        assert rank in self.clocks, f"worker {rank} pushed before it joined"
        assert rank not in self.held, f"worker {rank} pushed twice without reading"
        index = self.clocks[rank]
        self.clocks[rank] = Clock(index + steps)
        if rank in self.abandoned:  # the push crossed with our Obsolete message, and does not count
            return self.again(rank)
        self.computing.discard(rank)
        self.held[rank] = Held(rank, Step(index))
        if isinstance(self.rule, ObservesPushes):
            self.rule.note(rank, now_ns, self.clocks)
        return self._release()

    def again(self, rank: Rank) -> Release:
        """A worker has abandoned its step after an Obsolete message, and wants to read."""
        self.abandoned.discard(rank)
        self.waiting.append(rank)
        return self._release()

    def leave(self, rank: Rank) -> Release:
        """A worker that has finished (or died) no longer blocks the others."""
        self.clocks.pop(rank, None)
        self.computing.discard(rank)
        self.abandoned.discard(rank)
        return self._release()

    def furthest(self, between_steps: Collection[Rank] = ()) -> Clock:
        """The largest clock, counting the step that a worker is in as finished.

        Workers in `between_steps` have no current step, whether or not they may read.
        """
        idle = {*self.held, *self.waiting, *between_steps}
        return Clock(max((clock + (rank not in idle) for rank, clock in self.clocks.items()), default=0))

    def gap(self, index: Step) -> int:
        """How far ahead of the slowest active worker the step `index` is."""
        low = slowest(self.clocks)
        return 0 if low is None else max(0, index - low)

    def _release(self) -> Release:
        held = sorted(self.held.values(), key=lambda h: (h.index, h.rank))
        groups = self.rule.admit(held, self._expected())
        for rank in dict.fromkeys(h.rank for group in groups for h in group):
            del self.held[rank]
            self.waiting.append(rank)
        late = self._late() if groups else ()
        self.waiting = [rank for rank in self.waiting if rank in self.clocks]
        readers = tuple(r for r in self.waiting if self.rule.may_start(self.clocks[r], self.clocks))
        self.waiting = [rank for rank in self.waiting if rank not in readers]
        self.computing.update(readers)
        return Release(groups, readers, late)

    def _expected(self) -> dict[Rank, Clock]:
        """The clocks of the workers whose gradients may still arrive."""
        if not (self.is_exhausted and self.takes_back):
            return self.clocks
        return {r: c for r, c in self.clocks.items() if r in self.computing or r in self.held}

    def _late(self) -> tuple[Rank, ...]:
        if not self.takes_back:
            return ()
        late = tuple(sorted(self.computing))
        self.computing.clear()
        self.abandoned.update(late)
        return late


@dataclass(slots=True)
class BoundController:
    """Dynamic staleness bound (DSSP, Zhao 2019): grants a worker extra steps when that shortens its wait.

    The two latest pushes of a worker and of the slowest one predict when each will
    push next. The worker is granted the number of extra steps, at most `extra`, that
    makes it wait least. A grant holds until the worker is within the lower bound
    again. So a worker's bound is at least the lower one and at most the lower one
    plus `extra`. The server and the simulator share this class.
    """

    extra: int  # maximum number of steps beyond the lower bound
    num_workers: int
    granted: list[int] = field(init=False)  # extra steps of each worker at present
    # Each worker's last two pushes. The simulator writes them itself to avoid a call per event.
    pushed_ns: list[int | None] = field(init=False)
    before_ns: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.granted = [0] * self.num_workers
        self.pushed_ns = [None] * self.num_workers
        self.before_ns = [None] * self.num_workers

    def note(self, rank: int, now_ns: int, *, beyond: int, slowest: int) -> None:
        """Record a push of this worker, now `beyond` steps past the lower bound (0 or less: within it)."""
        self.before_ns[rank] = self.pushed_ns[rank]
        self.pushed_ns[rank] = now_ns
        if beyond <= 0:
            self.granted[rank] = 0
        elif self.granted[rank] == 0:
            self.grant(rank, slowest)

    def grant(self, rank: int, slowest: int) -> int:
        """Grant extra steps to a worker that is beyond the lower bound and has no grant; how many."""
        best = self.granted[rank] = self._best(rank, slowest)
        return best

    def _best(self, rank: int, slowest: int) -> int:
        own = self.pushed_ns[rank]
        own_before = self.before_ns[rank]
        last = self.pushed_ns[slowest]
        last_before = self.before_ns[slowest]
        if own is None or own_before is None or last is None or last_before is None:
            return 0  # one of them has not pushed twice yet: nothing can be predicted
        ahead_ns = own - last
        step_ns = own - own_before
        period_ns = last - last_before
        if not step_ns or not period_ns:
            return 0
        wait_ns = shortest_ns = -ahead_ns % period_ns
        best = 0
        for more in range(1, self.extra + 1):
            # From this worker's push after `more` steps to the slowest worker's next push.
            wait_ns = (wait_ns - step_ns) % period_ns
            if wait_ns < shortest_ns:
                shortest_ns = wait_ns
                best = more
        return best


@dataclass(slots=True)
class DynamicBounded:
    """Like `Bounded`, with a bound per worker that the controller moves."""

    low: int
    controller: BoundController

    def note(self, rank: Rank, now_ns: int, clocks: dict[Rank, Clock]) -> None:
        last = min(clocks, key=lambda other: (clocks[other], other))
        beyond = clocks[rank] - clocks[last] - self.low
        self.controller.note(rank, now_ns, beyond=beyond, slowest=last)

    def admit(self, held: list[Held], clocks: dict[Rank, Clock]) -> tuple[tuple[Held, ...], ...]:
        low = slowest(clocks)
        return tuple((h,) for h in held if low is None or h.index + 1 - low <= self.bound_of(h.rank))

    def may_start(self, clock: Clock, clocks: dict[Rank, Clock]) -> bool:
        """A worker whose update was admitted may start; one that joins is bound by the whole range."""
        low = slowest(clocks)
        return low is None or clock - low <= self.low + self.controller.extra

    def bound_of(self, rank: Rank) -> int:
        """This worker's current bound."""
        return self.low + self.controller.granted[rank]
