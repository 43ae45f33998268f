"""Learning-rate schedules: warm-up, cosine and linear decay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.schedule import RateSchedule, RateShape


def factors(shape: RateShape, *, warmup: int = 0, steps: int = 8) -> list[float]:
    schedule = RateSchedule(shape=shape, warmup=warmup, steps=steps)
    return [schedule.factor(step) for step in range(steps)]


def test_it_rises_by_equal_amounts_and_the_first_step_already_moves() -> None:
    assert factors(RateShape.CONSTANT, warmup=4) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]


def test_a_line_falls_by_equal_amounts_and_the_last_step_still_moves() -> None:
    assert factors(RateShape.LINEAR) == [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]


def test_a_cosine_is_half_way_down_in_the_middle() -> None:
    result = factors(RateShape.COSINE, warmup=2, steps=10)
    assert result[:3] == [0.5, 1.0, 1.0]
    assert result[6] == pytest.approx(0.5)
    assert result[9] == pytest.approx(0.0380602337)


def test_beyond_its_end_a_falling_rate_is_nothing() -> None:
    assert RateSchedule(shape=RateShape.COSINE, warmup=0, steps=4).factor(9) == 0.0


@given(st.sampled_from(RateShape), st.integers(0, 30), st.integers(1, 60))
def test_it_is_never_more_than_the_rate_and_falls_only_after_it_has_risen(
    shape: RateShape, warmup: int, steps: int
) -> None:
    result = factors(shape, warmup=min(warmup, steps), steps=steps)
    top = min(warmup, steps)
    assert all(0.0 < factor <= 1.0 for factor in result)
    assert result[:top] == sorted(result[:top])
    assert result[top:] == sorted(result[top:], reverse=True)
