"""Admission rules under every schedule. Ho 2013 for the bound."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.ids import Clock, Rank, Step
from paceline.sync.admission import Admission, Barrier, Bounded, Held, Release, Rule

PICKS = st.lists(st.integers(0, 1_000_000), max_size=120)


@dataclass
class Schedule:
    """Workers that join, push and leave in any order that the server's answers allow."""

    rule: Rule
    num_workers: int
    steps: int
    admission: Admission = field(init=False)
    groups: list[tuple[Held, ...]] = field(default_factory=list)
    reading: set[int] = field(default_factory=set)  # have parameters, and may push
    outside: set[int] = field(default_factory=set)  # have not joined yet
    pushed: dict[int, int] = field(default_factory=dict)
    started_gap: int = 0
    completed_gap: int = 0
    slowest_was_held: bool = False

    def __post_init__(self) -> None:
        ranks = range(self.num_workers)
        self.admission = Admission(self.rule, {Rank(r): Clock(0) for r in ranks})
        self.outside, self.pushed = set(ranks), dict.fromkeys(ranks, 0)

    def run(self, picks: list[int]) -> None:
        """Follow the picks, then let every worker finish in rank order."""
        for pick in picks:
            if able := sorted(self.outside | self.reading):
                self.act(able[pick % len(able)])
        while able := sorted(self.outside | self.reading):
            self.act(able[0])

    def act(self, rank: int) -> None:
        if rank in self.outside:
            self.outside.remove(rank)
            self.note(self.admission.join(Rank(rank), Clock(0)))
            return
        self.reading.remove(rank)
        self.pushed[rank] += 1
        self.note(self.admission.push(Rank(rank)))

    def note(self, release: Release) -> None:
        self.groups += release.groups
        clocks = self.admission.clocks
        for rank in release.readers:
            if self.pushed[rank] < self.steps:
                self.reading.add(rank)
                self.started_gap = max(self.started_gap, clocks[rank] - min(clocks.values()))
            else:
                self.note(self.admission.leave(rank))
        if clocks:
            low = min(clocks.values())
            self.completed_gap = max(self.completed_gap, max(clocks.values()) - low)
            slowest = {rank for rank, clock in clocks.items() if clock == low}
            self.slowest_was_held |= not slowest.isdisjoint(self.admission.held)

    def applied(self) -> list[tuple[int, int]]:
        return [(h.rank, h.index) for group in self.groups for h in group]

    def work(self) -> list[tuple[int, int]]:
        return [(rank, step) for rank in range(self.num_workers) for step in range(self.steps)]


@given(bound=st.integers(0, 4), workers=st.integers(1, 5), steps=st.integers(1, 8), picks=PICKS)
def test_no_schedule_drives_clocks_further_apart_than_the_bound(
    bound: int, workers: int, steps: int, picks: list[int]
) -> None:
    schedule = Schedule(Bounded(bound), workers, steps)
    schedule.run(picks)
    assert schedule.started_gap <= bound
    assert schedule.completed_gap <= bound + 1
    assert not schedule.slowest_was_held


@given(
    rule=st.one_of(st.none(), st.integers(0, 3)).map(Bounded) | st.just(Barrier()),
    workers=st.integers(1, 5),
    steps=st.integers(1, 8),
    picks=PICKS,
)
def test_every_pushed_update_is_applied_exactly_once_and_no_worker_is_left_waiting(
    rule: Rule, workers: int, steps: int, picks: list[int]
) -> None:
    schedule = Schedule(rule, workers, steps)
    schedule.run(picks)
    assert sorted(schedule.applied()) == schedule.work()
    assert schedule.admission.held == {}
    assert schedule.admission.clocks == {}


@given(workers=st.integers(1, 5), steps=st.integers(1, 8), picks=PICKS)
def test_without_a_bound_no_worker_is_ever_held(workers: int, steps: int, picks: list[int]) -> None:
    schedule = Schedule(Bounded(None), workers, steps)
    for pick in picks:
        if able := sorted(schedule.outside | schedule.reading):
            schedule.act(able[pick % len(able)])
            assert schedule.admission.held == {}
            assert len(schedule.groups) == sum(schedule.pushed.values())


@given(workers=st.integers(1, 5), steps=st.integers(1, 8), picks=PICKS)
def test_a_barrier_applies_all_workers_once_per_step_together(
    workers: int, steps: int, picks: list[int]
) -> None:
    schedule = Schedule(Barrier(), workers, steps)
    schedule.run(picks)
    ranks = range(workers)
    assert schedule.groups == [tuple(Held(Rank(r), Step(step)) for r in ranks) for step in range(steps)]


@given(workers=st.integers(2, 5), steps=st.integers(1, 8), picks=PICKS)
def test_a_bound_of_zero_applies_in_the_same_order_whichever_worker_is_fast(
    workers: int, steps: int, picks: list[int]
) -> None:
    schedule = Schedule(Bounded(0), workers, steps)
    schedule.run(picks)
    assert schedule.applied() == [(rank, step) for step in range(steps) for rank in range(workers)]


def test_a_worker_that_has_not_joined_yet_holds_the_others_back() -> None:
    admission = Admission(Bounded(1), {Rank(0): Clock(0), Rank(1): Clock(0)})
    admission.join(Rank(0), Clock(0))
    assert admission.push(Rank(0)).readers == (0,)  # one step ahead is allowed
    assert admission.push(Rank(0)) == Release()  # two are not
    assert admission.join(Rank(1), Clock(0)).readers == (1,)
    assert admission.push(Rank(1)).readers == (1, 0)  # in (index, rank) order


def test_a_worker_that_leaves_releases_those_it_held_back() -> None:
    for rule in (Bounded(0), Barrier()):
        admission = Admission(rule, {Rank(0): Clock(0), Rank(1): Clock(0)})
        for rank in (0, 1):
            admission.join(Rank(rank), Clock(0))
        assert admission.push(Rank(0)) == Release()
        assert admission.leave(Rank(1)) == Release(((Held(Rank(0), Step(0)),),), (Rank(0),))


def test_the_last_push_of_a_leaving_worker_is_still_applied_but_no_read_follows() -> None:
    admission = Admission(Barrier(), {Rank(0): Clock(0), Rank(1): Clock(0)})
    assert admission.push(Rank(0)) == Release()
    assert admission.leave(Rank(0)) == Release()
    release = admission.push(Rank(1))
    assert [held.rank for held in release.groups[0]] == [0, 1]
    assert release.readers == (1,)


def test_a_gap_is_counted_from_the_slowest_participant() -> None:
    admission = Admission(Bounded(None), {Rank(0): Clock(7), Rank(1): Clock(4)})
    assert admission.gap(Step(7)) == 3
    admission.leave(Rank(1))
    assert admission.gap(Step(7)) == 0
    admission.leave(Rank(0))
    assert admission.gap(Step(9)) == 0


def test_the_furthest_clock_counts_the_step_that_a_worker_is_in() -> None:
    admission = Admission(Bounded(0), {Rank(0): Clock(3), Rank(1): Clock(3)})
    assert admission.furthest() == 4  # both are computing their fourth step
    admission.push(Rank(0))
    admission.leave(Rank(1))
    assert admission.furthest() == 5  # released, it is in its fifth
    held = Admission(Bounded(0), {Rank(0): Clock(3), Rank(1): Clock(2)})
    held.push(Rank(0))
    assert held.furthest() == 4  # it is held, and computes nothing
    assert Admission(Barrier(), {}).furthest() == 0
