"""Shards by speed: each exactly once, without oscillation, and slow workers may return."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.shard_balancing import FIRST_TRY, SharesBySpeed, equal_counts, shards_between, shards_of

PACE_S = 0.01


def step(shares: SharesBySpeed, seconds: Sequence[float]) -> float:
    """One step at these speeds; how long it took."""
    counts = shares.counts
    reported = [own_s if count else None for own_s, count in zip(seconds, counts, strict=True)]
    shares.observe(reported)
    return max(count * own_s for count, own_s in zip(counts, seconds, strict=True))


@given(shards=st.integers(1, 40), data=st.data())
def test_before_anything_is_known_the_shares_are_the_usual_ones(shards: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, shards))
    counts = equal_counts(shards, workers)
    for rank in range(workers):
        assert shards_between(rank, counts) == shards_of(rank, workers=workers, shards=shards)


@given(
    shards=st.integers(4, 30),
    steps=st.lists(st.lists(st.floats(0.001, 10.0), min_size=4, max_size=4), max_size=80),
)
def test_every_shard_is_done_by_exactly_one_worker_whatever_the_speeds(
    shards: int, steps: list[list[float]]
) -> None:
    shares = SharesBySpeed(shards, 4)
    for seconds in steps:
        step(shares, seconds)
        mine = [shard for rank in range(4) for shard in shards_between(rank, shares.counts)]
        assert mine == list(range(shards))


@given(steps=st.lists(st.lists(st.floats(0.001, 1.0), min_size=3, max_size=3), max_size=60))
def test_equal_measurements_give_equal_shares(steps: list[list[float]]) -> None:
    one, other = SharesBySpeed(12, 3), SharesBySpeed(12, 3)
    for seconds in steps:
        step(one, seconds)
        step(other, seconds)
        assert one.counts == other.counts


def test_a_worker_that_is_four_times_as_slow_does_a_quarter() -> None:
    shares = SharesBySpeed(26, 4)
    for _ in range(20):
        step(shares, [PACE_S, PACE_S, 4 * PACE_S, PACE_S])
    assert shares.counts == (8, 8, 2, 8)


def test_equal_workers_keep_what_they_have() -> None:
    shares = SharesBySpeed(12, 3)
    for number in range(200):
        jitter = 1 + 0.05 * (number % 3)
        step(shares, [PACE_S * jitter, PACE_S, PACE_S])
        assert shares.counts == (4, 4, 4)


def test_throughput_returns_to_seventy_percent_of_healthy_with_a_worker_ten_times_as_slow() -> None:
    shares = SharesBySpeed(20, 5)
    healthy_s = step(shares, [PACE_S] * 5)
    speeds = [PACE_S, PACE_S, 10 * PACE_S, PACE_S, PACE_S]
    for _ in range(20):
        step(shares, speeds)
    assert shares.counts[2] == 0
    taken_s = sum(step(shares, speeds) for _ in range(400))
    assert 400 * healthy_s / taken_s >= 0.7


def test_a_worker_without_shards_is_tried_and_comes_back_when_it_is_fast_again() -> None:
    shares = SharesBySpeed(12, 3)
    for _ in range(20):
        step(shares, [PACE_S, PACE_S, 30 * PACE_S])
    assert shares.counts == (6, 6, 0)
    for _ in range(2 * FIRST_TRY):
        step(shares, [PACE_S] * 3)
    assert shares.counts == (4, 4, 4)


def test_one_of_many_comes_back_too() -> None:
    shares = SharesBySpeed(40, 10)
    for _ in range(20):
        step(shares, [30 * PACE_S, *[PACE_S] * 9])
    assert shares.counts[0] == 0
    for _ in range(2 * FIRST_TRY):
        step(shares, [PACE_S] * 10)
    assert shares.counts == (4,) * 10


def test_the_reason_has_the_numbers() -> None:
    shares = SharesBySpeed(12, 3)
    dealt = [shares.observe([0.01, 0.01, 0.04]) for _ in range(4)][-1]
    assert dealt is not None
    assert "10.0, 10.0, 40.0 ms" in dealt.reason
    assert "160.0 ms" in dealt.reason
