"""No sample depends on a later day: closes are changed, and the affected samples are checked.

The same check runs on builders that are wrong on purpose: if it did not find
their leaks, it would prove nothing.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.tasks.closes import made_up, walk

from paceline.datasets.sp500 import (
    FEATURES,
    LOOKBACK,
    Floats,
    Samples,
    embargo,
    features_of,
    prepare,
    samples_of,
)

WINDOW = 7
Builder = Callable[[Floats], Samples]


def build(closes: Floats) -> Samples:
    return samples_of(closes, window=WINDOW)


def label_of_the_same_day(closes: Floats) -> Samples:
    """The label window one day too early: the answer is the window's last return."""
    made = build(closes)
    return made._replace(y=(closes[made.days] > closes[made.days - 1]).astype(np.int64))


def label_of_the_day_after_tomorrow(closes: Floats) -> Samples:
    """The label window one day too late."""
    made = build(closes)
    there = made.days[:-1]
    y = (closes[there + 2] > closes[there + 1]).astype(np.int64)
    return Samples(made.x[:-1], y, there)


def features_of_tomorrow(closes: Floats) -> Samples:
    made = build(closes)
    return Samples(made.x[1:], made.y[:-1], made.days[:-1])


def a_mean_over_all_days(closes: Floats) -> Samples:
    made = build(closes)
    return made._replace(x=made.x - made.x.mean())


def leaks(builder: Builder, closes: Floats) -> list[str]:
    """What is wrong with the builder's samples, by changing closes and looking at what follows."""
    honest, result = builder(closes), []
    for i, day in enumerate(honest.days.tolist()):
        later = closes.copy()
        later[day + 1 :] *= np.linspace(1.5, 3.0, len(closes) - day - 1)
        if not np.array_equal(builder(later).x[i], honest.x[i]):
            result.append(f"the features of day {day} change with a later close")
        for factor, label in ((1.01, 1), (0.99, 0), (1.0, 0)):
            copied = closes.copy()
            copied[day + 1] = copied[day] * factor
            if builder(copied).y[i] != label:
                result.append(f"the label of day {day} does not say what the next close did")
        others = closes.copy()
        others[:day] *= 0.5
        others[day + 2 :] *= 2.0
        if builder(others).y[i] != honest.y[i]:
            result.append(f"the label of day {day} changes with a close that it is not about")
    return result


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), count=st.integers(LOOKBACK + WINDOW + 1, 60))
def test_features_use_no_later_day_and_the_label_only_the_next(seed: int, count: int) -> None:
    assert leaks(build, walk(count, seed)) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (label_of_the_same_day, "does not say what the next close did"),
        (label_of_the_day_after_tomorrow, "does not say what the next close did"),
        (label_of_the_day_after_tomorrow, "a close that it is not about"),
        (features_of_tomorrow, "change with a later close"),
        (a_mean_over_all_days, "change with a later close"),
    ],
)
def test_a_builder_that_is_off_by_one_day_is_caught(wrong: Builder, why: str) -> None:
    assert any(why in leak for leak in leaks(wrong, walk(45)))


def test_the_features_of_a_day_depend_on_a_fixed_number_of_closes() -> None:
    closes = walk(80)
    honest = features_of(closes)
    for day in (LOOKBACK, 50, 79):
        cut = features_of(closes[day - LOOKBACK : day + 1])
        np.testing.assert_allclose(cut, honest[day - LOOKBACK : day - LOOKBACK + 1], rtol=1e-12, atol=1e-15)


def test_features_are_what_they_are_called() -> None:
    closes = walk(40)
    day, logs = 33, np.log(closes)
    returns = np.diff(logs)[day - 20 : day]
    last_14 = returns[-14:]
    expected = [
        logs[day] - logs[day - 1],
        logs[day] - logs[day - 5],
        logs[day] - logs[day - 20],
        returns.std(),
        np.log(closes[day] / closes[day - 19 : day + 1].mean()),
        last_14[last_14 > 0].sum() / np.abs(last_14).sum(),
    ]
    assert len(expected) == len(FEATURES)
    np.testing.assert_allclose(features_of(closes)[day - LOOKBACK], expected, rtol=1e-9)


def test_closes_that_never_move_have_features_too() -> None:
    still = features_of(np.full(30, 7.0))
    assert np.isfinite(still).all()
    assert set(still[:, -1]) == {0.5}


def test_a_window_s_rows_are_the_days_before_and_its_own() -> None:
    closes = walk(50)
    made, rows = build(closes), features_of(closes)
    for i, day in enumerate(made.days.tolist()):
        own = rows[day - LOOKBACK - WINDOW + 1 : day - LOOKBACK + 1]
        assert np.array_equal(made.x[i], own.astype(np.float32))
    assert made.days[-1] == len(closes) - 2


@given(window=st.integers(1, 12), test_fraction=st.floats(0.05, 0.6), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_no_close_of_the_test_set_is_an_input_or_a_label_in_training(
    window: int, test_fraction: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    closes = made_up(250, seed)
    out = tmp_path_factory.mktemp("split") / "s.npz"
    prepare(closes, out, window=window, test_fraction=test_fraction)
    with np.load(out, allow_pickle=False) as file:
        place = {day.isoformat(): i for i, day in enumerate(closes.dates)}
        last_trained = place[str(file["dates_train"][-1])]
        first_tested = place[str(file["dates_test"][0])]
    last_label, first_seen = last_trained + 1, first_tested - window + 1 - LOOKBACK
    assert last_label < first_seen
    assert first_tested - last_trained - 1 == embargo(window)
