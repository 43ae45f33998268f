"""Statistics over a few repeats claim as much as the data supports, and no more."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.comparison.statistics import (
    Interval,
    difference_interval,
    fit_amdahl,
    is_different,
    mean_interval,
    quotient_interval,
    t_quantile,
)

TIMES = st.floats(0.01, 1000.0)
ROUNDS = st.lists(st.tuples(TIMES, TIMES), min_size=3, max_size=8)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (9, 2.2622),
        (10, 2.2281),
        (30, 2.0423),
        (200, 1.9719),
    ],
)
def test_students_t_is_that_of_the_printed_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


def test_an_interval_worked_out_by_hand() -> None:
    interval = mean_interval([1.0, 2.0, 3.0])
    assert interval is not None
    half = 4.302653 * 1.0 / math.sqrt(3)
    assert (interval.low, interval.high) == pytest.approx((2 - half, 2 + half), rel=1e-6)


def test_one_repeat_has_no_interval_and_no_verdict() -> None:
    assert mean_interval([1.0]) is None
    assert mean_interval([1.0, 2.0]) is None  # of two, it would be 25 times as wide as they differ
    assert quotient_interval([2.0], [1.0]) is None
    assert is_different(None, shown=2.0) is None


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=10))
def test_an_interval_holds_the_mean(values: list[float]) -> None:
    interval = mean_interval(values)
    assert interval is not None
    room = 1e-9 * (1 + max(map(abs, values)))
    assert interval.low - room <= statistics.fmean(values) <= interval.high + room


@given(rounds=ROUNDS)
def test_the_interval_of_a_speedup_holds_the_quotient_of_the_medians(
    rounds: list[tuple[float, float]],
) -> None:
    base, mine = [a for a, _ in rounds], [b for _, b in rounds]
    interval = quotient_interval(base, mine)
    assert interval is not None
    assert interval.holds(statistics.median(base) / statistics.median(mine))
    assert interval.low > 0


def test_a_drift_that_affects_all_cancels_out() -> None:
    """The machine gets slower and slower, but within each round the quotient is 2."""
    interval = quotient_interval([10.0, 20.0, 40.0], [5.0, 10.0, 20.0])
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))
    assert is_different(interval, shown=2.0)


def test_noise_is_no_difference() -> None:
    interval = quotient_interval([1.0, 1.2, 0.9], [1.1, 1.0, 1.0])
    assert interval is not None
    assert interval.holds(1.0)
    assert is_different(interval, shown=1.0) is False


def test_a_significant_but_tiny_difference_is_not_reported() -> None:
    assert is_different(Interval(1.009, 1.011), shown=1.01) is False
    assert is_different(Interval(1.09, 1.11), shown=1.10) is True


def test_differences_are_taken_within_rounds() -> None:
    interval = difference_interval([0.91, 0.81, 0.71], [0.90, 0.80, 0.70])
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.01, 0.01))


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    rng = random.Random(7)
    samples = [[rng.gauss(5.0, 2.0) for _ in range(3)] for _ in range(4000)]
    held = [interval.holds(5.0) for s in samples if (interval := mean_interval(s)) is not None]
    assert len(held) == 4000
    assert statistics.fmean(held) == pytest.approx(0.95, abs=0.012)


@given(serial=st.floats(0.0, 1.0))
def test_amdahls_serial_share_is_found_again(serial: float) -> None:
    points = [(n, 1 / (serial + (1 - serial) / n)) for n in (2, 4, 8)]
    amdahl = fit_amdahl(points)
    assert amdahl is not None
    assert amdahl.serial == pytest.approx(serial, abs=1e-9)
    assert amdahl.speedup(1) == pytest.approx(1.0)


def test_amdahl_needs_two_numbers_of_workers_and_has_no_limit_without_a_serial_share() -> None:
    assert fit_amdahl([(1, 1.0), (4, 3.0)]) is None
    assert fit_amdahl([(2, 0.7), (4, 0.5)]) is None  # slower than alone
    faster_than_ideal = fit_amdahl([(2, 2.2), (4, 4.4)])
    assert faster_than_ideal is not None
    assert faster_than_ideal.limit is None
