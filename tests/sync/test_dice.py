"""Counter-based random numbers are uniform and stateless."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.rng import draw_u64, draw_uniform

PLACES = st.lists(st.integers(0, 2**63 - 1), max_size=4)


@given(seed=st.integers(0, 2**63 - 1), place=PLACES)
def test_a_draw_is_in_range_and_always_the_same(seed: int, place: list[int]) -> None:
    assert 0 <= draw_u64(seed, *place) < 2**64
    assert 0.0 <= draw_uniform(seed, *place) < 1.0
    assert draw_u64(seed, *place) == draw_u64(seed, *place)


def test_ten_thousand_draws_fill_sixteen_bins_evenly() -> None:
    bins = Counter(int(draw_uniform(9, worker, step) * 16) for worker in range(10) for step in range(1000))
    expected = 10_000 / 16
    chi_square = sum((bins[b] - expected) ** 2 / expected for b in range(16))
    assert chi_square < 37.7  # 15 degrees of freedom, one in a thousand


def test_every_bit_is_one_half_of_the_time() -> None:
    draws = [draw_u64(0, n) for n in range(4096)]
    for bit in range(64):
        ones = sum(draw >> bit & 1 for draw in draws)
        assert abs(ones - 2048) < 5 * math.sqrt(4096 / 4)


def test_neighbouring_places_and_seeds_share_nothing() -> None:
    draws = [draw_u64(seed, worker, step) for seed in range(5) for worker in range(20) for step in range(100)]
    assert len(set(draws)) == len(draws)
    assert draw_u64(0, 1, 2) != draw_u64(0, 2, 1)
    assert draw_u64(0) != draw_u64(0, 0)
    assert draw_u64(3, 5) != draw_u64(5, 3)


def test_neighbours_are_not_correlated() -> None:
    pairs = [(draw_uniform(1, 0, n) - 0.5, draw_uniform(1, 0, n + 1) - 0.5) for n in range(5000)]
    covariance = sum(one * other for one, other in pairs) / len(pairs)
    assert abs(covariance * 12) < 5 / math.sqrt(5000)
