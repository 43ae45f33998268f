"""Parsers of single values."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.config.key import Key
from paceline.config.keys import KEYS
from paceline.config.values import (
    Quoted,
    Raw,
    Unreadable,
    read,
    read_batch_size,
    read_bool,
    read_duration,
    read_integer,
    read_number,
    read_option,
    read_staleness,
    show_value,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10ms", 0.01),
        ("0.5s", 0.5),
        ("2", 2.0),
        ("250us", 0.00025),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1e-3", 0.001),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert read_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "1e999", "ms", "--5"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(Unreadable):
        read_duration(text)


def test_a_negative_duration_is_read_so_that_the_range_can_refuse_it() -> None:
    assert read_duration("-1s") == -1.0


def test_a_float_is_not_an_integer_and_a_bool_is_not_a_number() -> None:
    with pytest.raises(Unreadable):
        read_integer(2.5)
    with pytest.raises(Unreadable):
        read_number(True)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_a_number_is_finite(text: str, wording: Wording) -> None:
    with wording.raises(Unreadable):
        read_number(text)


def test_batch_sizes_are_one_number_or_a_list() -> None:
    assert read_batch_size("32") == 32
    assert read_batch_size("32, 16") == (32, 16)
    assert read_batch_size([8, "4"]) == (8, 4)


def test_no_bound_is_written_inf(wording: Wording) -> None:
    spellings: list[Raw] = ["inf", "INF", ".inf", float("inf")]
    for spelling in spellings:
        assert read_staleness(spelling) == "inf"
    assert read_staleness("3") == 3
    with wording.raises(Unreadable):
        read_staleness("lots")


def test_options_keep_the_simplest_type_unless_quoted() -> None:
    assert read_option("64") == 64
    assert read_option("0.5") == 0.5
    assert read_option("true") is True
    assert read_option("relu") == "relu"
    assert read_option(Quoted("64")) == "64"
    assert read_option("nan") == "nan"


def test_yes_and_no() -> None:
    assert read_bool("Yes") is True
    assert read_bool("off") is False
    with pytest.raises(Unreadable):
        read_bool("maybe")


def test_a_long_value_is_shown_short() -> None:
    assert len(show_value("x" * 10_000)) < 80
    assert len(show_value(["x"] * 10_000)) < 80


_raws: st.SearchStrategy[Raw] = st.recursive(
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)


@given(key=st.sampled_from([k for k in KEYS.values() if not k.is_repeatable]), raw=_raws)
def test_whatever_is_written_is_read_or_refused(key: Key, raw: Raw) -> None:
    with contextlib.suppress(Unreadable):
        read(key, raw)
