"""First arrivals: the first K gradients of a version count, to the last share."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.ids import Clock, Rank
from paceline.sync.admission import Admission, FirstArrivals, Held, Release
from paceline.sync.assignment import FirstCome

PICKS = st.lists(st.integers(0, 1_000_000), max_size=150)


@dataclass
class Schedule:
    """Workers that join, push, notice that they are late (or push before they do) and leave, in any order."""

    num_workers: int
    needed: int
    total: int
    dies: int | None = None  # this one falls silent when it is first told to stop
    version: int = 0
    read: dict[int, int] = field(default_factory=dict)  # the version that each one computes on
    doing: dict[int, int] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    updates: list[list[tuple[int, int]]] = field(default_factory=list)  # (rank, staleness) of each
    applied: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks = [Rank(rank) for rank in range(self.num_workers)]
        self.shares = FirstCome(self.total)
        self.admission = Admission(FirstArrivals(self.needed), {rank: Clock(0) for rank in ranks})
        self.outside = set(ranks)

    def run(self, picks: list[int]) -> None:
        for pick in picks:
            if able := self.able():
                self.act(able[pick % len(able)], notices=pick % 3 > 0)
        while able := self.able():
            self.act(able[0], notices=True)

    def able(self) -> list[int]:
        busy = {rank for rank in self.read if rank not in self.admission.held}
        return sorted((self.outside | busy | self.late) - {self.dies if self.dies in self.late else None})

    def act(self, rank: int, *, notices: bool) -> None:
        if rank in self.outside:
            self.outside.remove(rank)
            self.note(self.admission.join(Rank(rank), Clock(0)))
        elif rank in self.late and notices:
            self.late.remove(rank)
            self.note(self.admission.again(Rank(rank)))
        else:
            self.late.discard(rank)
            self.note(self.admission.push(Rank(rank)))

    def note(self, release: Release) -> None:
        for group in release.groups:
            self.updates.append([(held.rank, self.version - self.read.pop(held.rank)) for held in group])
            self.applied += [self.doing[held.rank] for held in group]
            self.version += 1
        for rank in release.late:
            self.shares.give_back(self.doing[rank])
            self.late.add(rank)
            self.read.pop(rank)
        for rank in release.readers:
            position = self.shares.next(rank, 0)
            if position is None:
                self.note(self.admission.leave(rank))
            else:
                self.doing[rank], self.read[rank] = position, self.version
        self.admission.is_exhausted = self.shares.is_exhausted()


@given(workers=st.integers(1, 6), spare=st.integers(0, 5), rounds=st.integers(1, 6), picks=PICKS)
def test_every_update_has_k_distinct_fresh_contributors_and_every_share_is_applied_once(
    workers: int, spare: int, rounds: int, picks: list[int]
) -> None:
    needed = max(1, workers - spare)
    schedule = Schedule(workers, needed, rounds * workers)
    schedule.run(picks)
    assert sorted(schedule.applied) == list(range(rounds * workers))
    for contributors in schedule.updates:
        assert len({rank for rank, _ in contributors}) == len(contributors) <= needed
        assert {staleness for _, staleness in contributors} == {0}
    assert all(len(contributors) == needed for contributors in schedule.updates[:-1])


@given(workers=st.integers(2, 6), rounds=st.integers(1, 6), picks=PICKS, dies=st.integers(0, 5))
def test_a_late_worker_that_falls_silent_blocks_no_other(
    workers: int, rounds: int, picks: list[int], dies: int
) -> None:
    schedule = Schedule(workers, workers - 1, rounds * workers, dies=dies % workers)
    schedule.run(picks)
    assert sorted(schedule.applied) == list(range(rounds * workers))


def started_admission(workers: int, needed: int) -> Admission:
    admission = Admission(FirstArrivals(needed), {Rank(rank): Clock(0) for rank in range(workers)})
    for rank in range(workers):
        admission.join(Rank(rank), Clock(0))
    return admission


def test_the_last_of_the_first_k_ends_the_round_and_the_rest_are_late() -> None:
    admission = started_admission(4, 2)
    assert admission.push(Rank(3)) == Release()
    release = admission.push(Rank(1))
    assert release.groups == ((Held(Rank(1), 0), Held(Rank(3), 0)),)  # type: ignore[arg-type]  # Step is an int
    assert release.readers == (1, 3)
    assert release.late == (0, 2)


def test_a_gradient_that_crosses_with_the_cancellation_is_not_held_and_its_worker_reads() -> None:
    admission = started_admission(3, 2)
    admission.push(Rank(0))
    admission.push(Rank(1))
    assert admission.push(Rank(2)) == Release(readers=(Rank(2),))
    assert admission.held == {}
    assert admission.clocks == {0: 1, 1: 1, 2: 1}


def test_a_worker_that_has_not_joined_yet_is_waited_for_only_while_there_is_work_for_it() -> None:
    admission = Admission(FirstArrivals(2), {Rank(0): Clock(0), Rank(1): Clock(0)})
    admission.join(Rank(0), Clock(0))
    assert admission.push(Rank(0)).groups == ()
    admission = Admission(FirstArrivals(2), {Rank(0): Clock(0), Rank(1): Clock(0)})
    admission.join(Rank(0), Clock(0))
    admission.is_exhausted = True
    assert len(admission.push(Rank(0)).groups) == 1
