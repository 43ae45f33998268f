"""balance_units assigns all units, and no other assignment finishes earlier."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.adaptive_setting import balance_units

SECONDS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.3, 2.0, 3.0, 10.0]), min_size=1, max_size=6)


def finish(shares: tuple[int, ...], seconds: list[float]) -> float:
    return max(share * cost for share, cost in zip(shares, seconds, strict=True))


@given(seconds=SECONDS, extra=st.integers(0, 60), least=st.integers(1, 3))
def test_everything_is_dealt_and_every_worker_gets_the_minimum(
    seconds: list[float], extra: int, least: int
) -> None:
    total = least * len(seconds) + extra
    shares = balance_units(total, seconds, minimum=least)
    assert sum(shares) == total
    assert min(shares) >= least


@given(seconds=SECONDS, extra=st.integers(0, 60))
def test_no_single_unit_would_be_better_off_elsewhere(seconds: list[float], extra: int) -> None:
    shares = balance_units(len(seconds) + extra, seconds)
    last = finish(shares, seconds)
    for giver, share in enumerate(shares):
        if share == 1 or share * seconds[giver] < last:
            continue
        for taker in range(len(seconds)):
            moved = [s + (w == taker) - (w == giver) for w, s in enumerate(shares)]
            assert finish(tuple(moved), seconds) >= last


def test_shares_follow_speeds_as_closely_as_whole_units_allow() -> None:
    assert balance_units(256, [1.0] * 3 + [3.0] + [1.0] * 4) == (35, 35, 35, 11, 35, 35, 35, 35)
    assert balance_units(64, [1.0, 1.5, 2.0, 3.0]) == (26, 17, 13, 8)
    assert balance_units(12, [1.0, 1.0, 1.0]) == (4, 4, 4)


def test_a_worker_that_is_hopelessly_slow_still_gets_the_least() -> None:
    assert balance_units(32, [1.0, 1.0, 1000.0], minimum=2) == (15, 15, 2)


def test_large_batches_are_dealt_at_once() -> None:
    assert sum(balance_units(2**40, [1.0, 2.0, 3.0])) == 2**40
