"""LocalSGD averages after the right steps, with the right weights."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.averaging import averages_after, mean_weight, round_end


def syncs(total: int, every: int, post_local_after: int = 0) -> list[int]:
    return [
        finished
        for finished in range(1, total + 1)
        if averages_after(finished, total=total, every=every, post_local_after=post_local_after)
    ]


def test_a_period_of_4_averages_after_4_8_12_and_the_last_step() -> None:
    # torch's PeriodicModelAverager does it after 1, 5 and 9.
    assert syncs(14, 4) == [4, 8, 12, 14]


def test_a_period_of_1_averages_always_and_one_that_is_too_long_only_at_the_end() -> None:
    assert syncs(5, 1) == [1, 2, 3, 4, 5]
    assert syncs(5, 100) == [5]


def test_post_local_sgd_averages_every_step_at_first_then_counts_the_period_from_there() -> None:
    assert syncs(12, 4, post_local_after=3) == [1, 2, 3, 7, 11, 12]


@given(total=st.integers(1, 60), every=st.integers(1, 20), after=st.integers(0, 70))
def test_no_worker_is_alone_for_longer_than_the_period_and_all_agree_at_the_end(
    total: int, every: int, after: int
) -> None:
    results = [0, *syncs(total, every, after)]
    assert results[-1] == total
    assert all(later - earlier <= every for earlier, later in itertools.pairwise(results))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_weights_make_an_unweighted_mean_the_mean_over_all_samples(sizes: list[int]) -> None:
    shares = [Fraction(mean_weight(rank, sizes)) / len(sizes) for rank in range(len(sizes))]
    for share, size in zip(shares, sizes, strict=True):
        assert float(share) == pytest.approx(size / sum(sizes), rel=1e-15)


@given(size=st.integers(1, 10_000), workers=st.integers(1, 64))
def test_equal_batches_are_weighted_by_exactly_one(size: int, workers: int) -> None:
    assert {mean_weight(rank, [size] * workers) for rank in range(workers)} == {1.0}


@given(total=st.integers(1, 40), every=st.integers(1, 9), post_local_after=st.integers(0, 12))
def test_rounds_follow_each_other_from_one_averaging_to_the_next(
    total: int, every: int, post_local_after: int
) -> None:
    ends, result = [], 0
    while result < total:
        result = round_end(result, total=total, every=every, post_local_after=post_local_after)
        ends.append(result)
    assert ends == syncs(total, every, post_local_after)
