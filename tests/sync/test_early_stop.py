"""Early stopping: how many evaluations have passed since the best one."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.schedule import best_index, evaluations_since_best

_values = st.lists(st.none() | st.floats(allow_nan=True) | st.sampled_from([1.0, 2.0]), max_size=12)


def test_only_what_is_strictly_better_is_better() -> None:
    assert best_index([0.5, 0.4, 0.4, 0.6], lower_is_better=True) == 1
    assert evaluations_since_best([0.5, 0.4, 0.4, 0.6], lower_is_better=True) == 2
    assert best_index([0.5, 0.4, 0.6, 0.6], lower_is_better=False) == 2


def test_what_is_no_number_is_never_better_and_still_waited_for() -> None:
    assert best_index([None, float("nan"), float("inf")], lower_is_better=True) is None
    assert evaluations_since_best([None, float("nan")], lower_is_better=True) == 2
    assert evaluations_since_best([0.3, None], lower_is_better=True) == 1


@given(values=_values, lower_is_better=st.booleans())
def test_an_evaluation_more_is_either_the_best_or_waited_one_longer(
    values: list[float | None], lower_is_better: bool
) -> None:
    for end in range(1, len(values) + 1):
        before = evaluations_since_best(values[: end - 1], lower_is_better=lower_is_better)
        assert evaluations_since_best(values[:end], lower_is_better=lower_is_better) in (0, before + 1)
