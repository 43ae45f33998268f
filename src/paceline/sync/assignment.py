"""Work assignment: which share of a run's work each worker takes next.

The work of a run is the shares 0 … T·N-1; share p is what worker p mod N does
at its step p div N in a synchronous run (its samples, its random numbers).
`Static`: each worker does its own T shares. `FirstCome`: a free worker takes the
lowest unassigned share, or the lowest block of shares, named by its first
one, so fast workers do more of the same work. Either way every share is done
once, so modes can be compared. `Ranges` stores which shares are done.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from paceline.sync.samples import slice_of


@dataclass(frozen=True, slots=True)
class SampleSlice:
    """Samples that replace the planned ones of a step: `count` from stream position `start`."""

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """One share of the work: what worker `rank` does at `step` in a synchronous run."""

    rank: int
    step: int
    cut: SampleSlice | None = None  # None: the planned samples

    @classmethod
    def at(cls, position: int, num_workers: int) -> "WorkUnit":
        return cls(position % num_workers, position // num_workers)

    def position(self, num_workers: int) -> int:
        return self.step * num_workers + self.rank

    def samples(self, batch_sizes: Sequence[int]) -> tuple[int, int]:
        """(start, count) in the stream of samples."""
        if self.cut is None:
            return slice_of(self.rank, self.step, batch_sizes)
        return self.cut.start, self.cut.count

    def size(self, batch_sizes: Sequence[int]) -> int:
        """How many samples."""
        return batch_sizes[self.rank] if self.cut is None else self.cut.count


class Assignment(Protocol):
    def next(self, rank: int, clock: int) -> int | None:
        """The position that this worker takes after `clock` gradients; None: nothing is left."""
        ...

    def give_back(self, position: int) -> None:
        """Return an assigned share whose gradient was discarded."""
        ...

    def is_exhausted(self) -> bool:
        """Whether no share is left for any worker at present."""
        ...

    def stop(self, furthest: int) -> None:
        """Stop early: assign only the shares that are needed for a consistent end.

        `furthest` is the clock of the fastest worker, counting its current step as finished.
        """
        ...


@dataclass(slots=True)
class Static:
    num_workers: int
    steps: int

    def next(self, rank: int, clock: int) -> int | None:
        return WorkUnit(rank, clock).position(self.num_workers) if clock < self.steps else None

    def give_back(self, position: int) -> None:
        raise AssertionError("shares that are fixed by rank and step cannot be done again")

    def is_exhausted(self) -> bool:
        return False  # each worker has its own end

    def stop(self, furthest: int) -> None:
        """All workers end after the same step, so only whole steps are done."""
        self.steps = min(self.steps, furthest)


@dataclass(slots=True)
class FirstCome:
    total: int
    done: AbstractSet[int] = frozenset()  # applied before a resume
    every: int = 1  # shares that are assigned together
    _next: int = field(default=0, init=False)
    _returned: list[int] = field(default_factory=list, init=False)  # sorted

    def next(self, rank: int, clock: int) -> int | None:
        if self.is_exhausted():
            return None
        if self._returned:
            return self._returned.pop(0)
        self._next += self.every
        return self._next - self.every

    def give_back(self, position: int) -> None:
        insort(self._returned, position)

    def is_exhausted(self) -> bool:
        while self._next in self.done:
            self._next += self.every
        return not self._returned and self._next >= self.total

    def stop(self, furthest: int) -> None:
        """Returned shares are still done: no share before the last one stays open."""
        self.total = min(self.total, self._next)

    def stop_resumed(self) -> None:
        """Assign only the open shares before the last share that was applied before the resume."""
        applied = as_ranges(self.done)
        self.total = min(self.total, applied[-1][1] if applied else 0)

    def state(self) -> "FirstComeState":
        """The state with which another server assigns the same shares from here on."""
        return FirstComeState(self.total, self._next, as_ranges(self.done), list(self._returned))

    @classmethod
    def from_state(cls, state: "FirstComeState") -> "FirstCome":
        assignment = cls(state.total, Ranges(state.done))
        assignment._next = state.next
        assignment._returned = list(state.returned)
        return assignment


class FirstComeState(NamedTuple):
    """The state of a FirstCome that assigns single shares."""

    total: int
    next: int
    done: list[tuple[int, int]]
    returned: list[int]


def work_units_of_round(rank: int, runs: Sequence[int], *, first: int, steps: int) -> list[WorkUnit]:
    """The shares of worker `rank` in a round of `steps` steps in which worker r makes runs[r] local steps.

    Each worker does its own shares first; a worker with more steps also does what slow workers leave.
    """
    workers = len(runs)
    own = [WorkUnit(rank, first + step) for step in range(min(runs[rank], steps))]
    spare = [WorkUnit(r, first + step) for step in range(steps) for r in range(workers) if step >= runs[r]]
    begin = sum(max(0, run - steps) for run in runs[:rank])
    return own + spare[begin : begin + max(0, runs[rank] - steps)]


class Ranges(AbstractSet[int]):
    """A set of integers as sorted ranges: however many shares a run has applied, they form few ranges.

    Invariant: `_firsts` and `_ends` are sorted, ranges are not empty, and neighbours do not touch.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._count = 0
        for first, end in sorted(ranges):
            self._add_range(first, end)

    def add(self, position: int) -> None:
        at = bisect_right(self._firsts, position)  # ranges before index `at` begin at or before `position`
        if at and position < self._ends[at - 1]:
            return
        self._count += 1
        extends = at > 0 and self._ends[at - 1] == position
        precedes = at < len(self._firsts) and self._firsts[at] == position + 1
        if extends and precedes:
            self._ends[at - 1] = self._ends.pop(at)
            del self._firsts[at]
        elif extends:
            self._ends[at - 1] = position + 1
        elif precedes:
            self._firsts[at] = position
        else:
            self._firsts.insert(at, position)
            self._ends.insert(at, position + 1)

    def update(self, positions: Iterable[int]) -> None:
        for position in positions:
            self.add(position)

    def pairs(self) -> list[tuple[int, int]]:
        """(first, end) of each range, sorted."""
        return list(zip(self._firsts, self._ends, strict=True))

    def copy(self) -> "Ranges":
        return Ranges(self.pairs())

    def __contains__(self, position: object) -> bool:
        if not isinstance(position, int):
            return False
        at = bisect_right(self._firsts, position)
        return at > 0 and position < self._ends[at - 1]

    def __iter__(self) -> Iterator[int]:
        for first, end in self.pairs():
            yield from range(first, end)

    def __len__(self) -> int:
        return self._count

    def _add_range(self, first: int, end: int) -> None:
        """Append a range that begins after all others, or overlaps with the last."""
        if self._ends and first <= self._ends[-1]:
            first = self._ends[-1]
            end = max(end, first)
            self._ends[-1] = end
        elif first < end:
            self._firsts.append(first)
            self._ends.append(end)
        self._count += max(0, end - first)


def as_ranges(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Positions as (first, end) pairs, sorted."""
    if isinstance(positions, Ranges):
        return positions.pairs()
    ranges: list[tuple[int, int]] = []
    for position in sorted(positions):
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges
