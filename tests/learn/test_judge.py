"""An answer is right if it is what the learner's own run says, as exactly as the run showed it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.humanize import short_number
from paceline.learn.lesson import (
    ChoiceAnswer,
    exactly,
    half_shown,
    is_right,
    number,
    quotient,
    readable,
    rounded,
)

rates = st.floats(min_value=1.0, max_value=1e6)


@pytest.mark.parametrize(
    ("text", "value"), [("3.5", 3.5), ("3,5", 3.5), (" 51 % ", 51.0), ("1.22k", 1220.0), ("2x", 2.0)]
)
def test_numbers_are_read_as_people_write_them(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "three", "nan", "inf", "1e999", "--", "1.2.3"])
def test_what_is_no_number_is_no_answer(text: str) -> None:
    assert number(text) is None
    assert not readable(text, ())


@given(upper=rates, lower=rates)
def test_dividing_the_displayed_numbers_and_rounding_is_accepted(upper: float, lower: float) -> None:
    seen = [number(short_number(value)) for value in (upper, lower)]
    assert seen[0] is not None
    assert seen[1] is not None
    message = f"{seen[0] / seen[1]:.1f}"
    assert is_right(message, quotient(upper, lower, asked=0.1), ())


def test_the_quotient_the_other_way_round_is_wrong() -> None:
    assert not is_right("0.3", quotient(4440, 1570, asked=0.1), ())
    assert not is_right("2.7", quotient(4440, 1570, asked=0.1), ())


@given(value=st.floats(min_value=1e-3, max_value=1e6))
def test_what_is_shown_is_never_further_away_than_half_its_last_digit(value: float) -> None:
    digits = 3 - 1 - _exponent(value)
    assert abs(round(value, digits) - value) <= half_shown(value) * 1.000001


def test_counts_are_exact_and_shares_are_as_exact_as_requested() -> None:
    assert is_right("5120", exactly(5120), ())
    assert not is_right("5121", exactly(5120), ())
    assert is_right("51", rounded(50.6, 1.0), ())
    assert not is_right("50", rounded(50.6, 1.0), ())


def test_an_option_is_named_by_its_letter() -> None:
    options = (("a", "yes"), ("b", "no"))
    assert is_right("B", ChoiceAnswer(key="b"), options)
    assert not is_right("a", ChoiceAnswer(key="b"), options)
    assert not readable("c", options)


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])
