"""Trials are drawn from the seed alone, within the search space, and never twice."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from paceline.tune.search_space import MAX_CORNERS, Range, Search, corners, draws, read_searches, value_at


def searches(*texts: str) -> tuple[Search, ...]:
    result, problems = read_searches(texts)
    assert not problems
    return result


MIXED = ("lr=log:1e-3..1.0", "batch_size=8,16,32", "sync_every=2..9")


@given(seed=st.integers(0, 2**63 - 1))
def test_the_same_seed_draws_the_same_and_a_longer_search_begins_with_the_shorter(seed: int) -> None:
    space = searches(*MIXED)
    long = list(itertools.islice(draws(space, seed), 20))
    assert long[:5] == list(itertools.islice(draws(space, seed), 5))
    assert len(set(long)) == 20
    for lr, batch, every in long:
        assert 0.001 <= float(lr) <= 1.0
        assert batch in ("8", "16", "32")
        assert 2 <= int(every) <= 9


def test_another_seed_draws_something_else() -> None:
    space = searches(*MIXED)
    assert next(draws(space, 1)) != next(draws(space, 2))


def test_listed_values_are_dealt_out_each_combination_once() -> None:
    space = searches("mode=ssgd,localsgd", "batch_size=8,16,32")
    dealt = list(draws(space, 7))
    assert set(dealt) == set(itertools.product(("ssgd", "localsgd"), ("8", "16", "32")))
    assert len(dealt) == 6
    assert dealt != list(draws(space, 8)), "in an order that is the seed's"


def test_a_small_space_ends() -> None:
    assert sorted(draws(searches("batch_size=1..3"), 0)) == [("1",), ("2",), ("3",)]


@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_every_share_is_inside_the_range(share: float) -> None:
    assert 1 <= int(value_at(Range(1, 7, is_whole=True), share)) <= 7
    assert 1 <= int(value_at(Range(1, 7, is_log=True, is_whole=True), share)) <= 7
    assert 1e-3 <= float(value_at(Range(1e-3, 1.0, is_log=True), share)) <= 1.0
    assert -2.0 <= float(value_at(Range(-2.0, 3.0), share)) <= 3.0


def test_orders_of_magnitude_are_equally_likely_in_a_log_range() -> None:
    domain = Range(1e-4, 1.0, is_log=True)
    drawn = [float(value_at(domain, (n + 0.5) / 400)) for n in range(400)]
    for low in (-4, -3, -2, -1):
        assert sum(10.0**low <= lr < 10.0 ** (low + 1) for lr in drawn) == 100
    whole = [int(value_at(Range(1, 4, is_whole=True), (n + 0.5) / 400)) for n in range(400)]
    assert [whole.count(n) for n in (1, 2, 3, 4)] == [100] * 4


def test_corners_are_all_ends_and_listed_values_in_combination() -> None:
    samples = corners(searches("lr=0.1..1", "mode=ssgd,asgd,ssp"))
    assert set(samples) == set(itertools.product(("0.1", "1.0"), ("ssgd", "asgd", "ssp")))


def test_of_too_many_corners_each_value_is_tried_at_least_once() -> None:
    keys = "batch_size steps seed shards sync_every fragments sync_delay staleness keep_checkpoints"
    many = searches(*(f"{key}=1..9" for key in keys.split()))
    assert 2 ** len(many) > MAX_CORNERS
    samples = corners(many)
    assert len(samples) < MAX_CORNERS
    for place in range(len(many)):
        assert {drawn[place] for drawn in samples} == {"1", "9"}
