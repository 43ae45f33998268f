"""Hindsight equals its definition."""

from statistics import fmean, median, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.adaptive_policy import WINDOW_STEPS, Hindsight, Window, lasting_s
from paceline.sync.adaptive_setting import AdaptiveSetting, AdaptiveTerms, Allowed, SyncPolicy

ROWS = st.lists(st.floats(1e-4, 1e-2), min_size=1, max_size=WINDOW_STEPS)
WINDOWS = st.lists(ROWS, min_size=3, max_size=3)
SHARES = st.tuples(*[st.integers(1, 40)] * 3)


@given(window=WINDOWS, shares=SHARES)
def test_a_step_takes_as_long_as_its_slowest_worker_and_missing_steps_are_taken_again(
    window: Window, shares: tuple[int, ...]
) -> None:
    steps = max(map(len, window))
    slowest = [
        max(own[step % len(own)] * share for own, share in zip(window, shares, strict=True))
        for step in range(steps)
    ]
    result = Hindsight(window, _terms(8)).step_s(AdaptiveSetting(SyncPolicy.BATCH, shares))
    assert result == pytest.approx(sum(slowest) / steps, rel=1e-12)


@given(window=WINDOWS, shares=SHARES, period=st.integers(1, 30))
def test_a_round_takes_as_long_as_its_slowest_worker_and_starts_where_the_last_one_ended(
    window: Window, shares: tuple[int, ...], period: int
) -> None:
    rounds = max(1, WINDOW_STEPS // period)
    slowest = [
        max(
            sum(own[(turn * share + step) % len(own)] for step in range(share))
            for own, share in zip(window, shares, strict=True)
        )
        for turn in range(rounds)
    ]
    result = Hindsight(window, _terms(period)).step_s(AdaptiveSetting(SyncPolicy.LOCAL_STEPS, shares))
    assert result == pytest.approx(sum(slowest) * 4 / (rounds * period), rel=1e-12)


@given(
    window=st.lists(
        st.lists(st.floats(1e-4, 1e-2), min_size=2, max_size=WINDOW_STEPS), min_size=1, max_size=5
    )
)
def test_a_mean_counts_as_far_as_it_is_beyond_twice_its_noise(window: list[list[float]]) -> None:
    means, noise = [fmean(own) for own in window], [variance(own) / len(own) for own in window]
    usual, common = median(means), fmean(noise)
    for mean, own_noise, result in zip(means, noise, lasting_s(window), strict=True):
        off, doubt = mean - usual, 2 * max(own_noise, common)
        believed = off * max(0.0, 1 - doubt / off**2) if abs(off) > 1e-12 else 0.0
        assert result == pytest.approx(usual + believed, rel=1e-6)


def _terms(period: int) -> AdaptiveTerms:
    return AdaptiveTerms(allowed=Allowed.AUTO, batch_sizes=(4,) * 3, period=period)
