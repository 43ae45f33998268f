"""Assignment: every share of the work is done exactly once, by any worker."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.assignment import (
    Assignment,
    FirstCome,
    Ranges,
    SampleSlice,
    Static,
    WorkUnit,
    as_ranges,
    work_units_of_round,
)

POSITIONS = st.sets(st.integers(0, 200))


def all_taken(assignment: Assignment, num_workers: int, turns: list[int]) -> list[int]:
    """What workers take when they ask in this order, and then all to the end."""
    clocks, taken = [0] * num_workers, []
    for turn in turns:
        rank = turn % num_workers
        if (position := assignment.next(rank, clocks[rank])) is not None:
            taken.append(position)
            clocks[rank] += 1
    for rank in range(num_workers):
        while (position := assignment.next(rank, clocks[rank])) is not None:
            taken.append(position)
            clocks[rank] += 1
    return taken


@given(workers=st.integers(1, 6), steps=st.integers(1, 10), turns=st.lists(st.integers(0, 5), max_size=80))
def test_static_shares_are_each_taken_once_and_by_their_own_worker(
    workers: int, steps: int, turns: list[int]
) -> None:
    assert sorted(all_taken(Static(workers, steps), workers, turns)) == list(range(workers * steps))
    for rank in range(workers):
        own = [Static(workers, steps).next(rank, clock) for clock in range(steps)]
        assert own == [WorkUnit(rank, step).position(workers) for step in range(steps)]


@given(
    workers=st.integers(1, 6),
    total=st.integers(0, 60),
    done=st.sets(st.integers(0, 59)),
    turns=st.lists(st.integers(0, 5), max_size=80),
)
def test_first_come_hands_out_what_is_not_done_once_and_in_order(
    workers: int, total: int, done: set[int], turns: list[int]
) -> None:
    taken = all_taken(FirstCome(total, frozenset(done)), workers, turns)
    assert taken == [position for position in range(total) if position not in done]


def test_a_worker_that_requests_more_often_does_more_of_the_same_work() -> None:
    shares = FirstCome(6)
    assert [shares.next(0, clock) for clock in range(4)] == [0, 1, 2, 3]
    assert [shares.next(1, 0), shares.next(1, 1), shares.next(1, 2)] == [4, 5, None]


@given(position=st.integers(0, 10_000), workers=st.integers(1, 64))
def test_a_share_and_its_position_name_each_other(position: int, workers: int) -> None:
    share = WorkUnit.at(position, workers)
    assert share.position(workers) == position
    assert 0 <= share.rank < workers


@given(POSITIONS)
def test_positions_survive_the_way_through_ranges(positions: set[int]) -> None:
    ranges = as_ranges(positions)
    assert set(Ranges(ranges)) == positions
    assert all(end < following for (_, end), (following, _) in itertools.pairwise(ranges))


def test_a_contiguous_run_is_one_range_however_long() -> None:
    assert as_ranges(range(100_000)) == [(0, 100_000)]
    assert as_ranges([3, 1, 2, 7]) == [(1, 4), (7, 8)]


@given(workers=st.integers(1, 5), steps=st.integers(1, 12), furthest=st.integers(0, 15))
def test_static_work_that_is_stopped_ends_for_all_after_the_same_step(
    workers: int, steps: int, furthest: int
) -> None:
    shares = Static(workers, steps)
    shares.stop(furthest)
    assert sorted(all_taken(shares, workers, [])) == list(range(workers * min(steps, furthest)))


@given(total=st.integers(0, 30), taken=st.integers(0, 40), done=st.sets(st.integers(0, 29)))
def test_first_come_work_that_is_stopped_hands_out_nothing_more(
    total: int, taken: int, done: set[int]
) -> None:
    shares = FirstCome(total, frozenset(done))
    for _ in range(taken):
        shares.next(0, 0)
    shares.stop(99)
    assert shares.next(1, 0) is None


def test_what_is_given_back_is_done_before_anything_new_the_lowest_first() -> None:
    shares = FirstCome(6)
    for _ in range(4):
        shares.next(0, 0)
    for position in (3, 1):
        shares.give_back(position)
    assert [shares.next(0, 0) for _ in range(4)] == [1, 3, 4, 5]
    assert shares.is_exhausted()
    shares.give_back(2)
    assert not shares.is_exhausted()
    assert [shares.next(0, 0), shares.next(0, 0)] == [2, None]


@given(
    runs=st.lists(st.integers(1, 9), min_size=2, max_size=5).filter(lambda runs: sum(runs) % len(runs) == 0),
    first=st.integers(0, 20),
)
def test_a_round_of_local_steps_is_done_completely_and_every_worker_starts_with_its_own(
    runs: list[int], first: int
) -> None:
    workers, steps = len(runs), sum(runs) // len(runs)
    dealt = [work_units_of_round(rank, runs, first=first, steps=steps) for rank in range(workers)]
    assert [len(shares) for shares in dealt] == runs
    positions = sorted(share.position(workers) for shares in dealt for share in shares)
    assert positions == list(range(first * workers, (first + steps) * workers))
    for rank, shares in enumerate(dealt):
        assert all(share.rank == rank for share in shares[:steps])


def test_a_share_may_be_cut_differently_than_planned() -> None:
    assert WorkUnit(1, 2).samples((4, 6)) == (24, 6)
    assert WorkUnit(1, 2).size((4, 6)) == 6
    cut = WorkUnit(1, 2, SampleSlice(27, 3))
    assert cut.samples((4, 6)) == (27, 3)
    assert cut.size((4, 6)) == 3
    assert cut.position(2) == WorkUnit(1, 2).position(2)


@given(positions=st.lists(st.integers(0, 40), max_size=80))
def test_ranges_hold_what_a_set_holds(positions: list[int]) -> None:
    result, plain = Ranges(), set[int]()
    for position in positions:
        result.add(position)
        plain.add(position)
        assert len(result) == len(plain)
    assert set(result) == plain
    assert result.pairs() == as_ranges(plain)
    assert all((position in result) == (position in plain) for position in range(-1, 42))
    assert set(result.copy()) == plain


def test_a_million_shares_in_nearly_their_order_are_one_range() -> None:
    result, most = Ranges(), 0
    order = [7, 0, 3, 1, 2, 6, 5, 4]  # of eight workers
    for block in range(0, 80_000, 8):
        result.update(block + place for place in order)
        most = max(most, len(result.pairs()))
    assert result.pairs() == [(0, 80_000)]
    assert most == 1


def test_a_stopped_run_that_is_resumed_does_what_is_open_before_its_last_applied_share() -> None:
    work = FirstCome(100, frozenset({0, 1, 3, 5}))
    work.stop_resumed()
    assert [work.next(0, 0), work.next(0, 0), work.next(0, 0)] == [2, 4, None]
