"""Aggregation rules: textbook values, and behaviour with non-finite gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.plan.catalog import AGGREGATES, min_workers_for
from paceline.strategies.robust import builtin_aggregate, krum, mean, median, trimmed_mean

NAN, INF = float("nan"), float("inf")


def column(*values: float) -> Tensor:
    """One coordinate, as every worker sees it."""
    return torch.tensor([[value] for value in values], dtype=torch.float64)


def test_the_catalogs_ways_are_all_there() -> None:
    assert all(builtin_aggregate(name, 1) is not None for name in AGGREGATES)
    assert builtin_aggregate("mine:function", 1) is None


def test_the_median_is_the_middle_or_the_mean_of_the_two_middles() -> None:
    assert median(column(5, 1, 3)).item() == 3
    assert median(column(5, 1, 3, 100)).item() == 4


def test_the_trimmed_mean_forgets_both_ends() -> None:
    assert trimmed_mean(column(100, 1, 2, 3, -100), 1).item() == 2
    assert trimmed_mean(column(1, 2, 6), 0).item() == 3


def test_each_coordinate_is_judged_by_itself() -> None:
    stack = torch.tensor([[1.0, 900.0], [2.0, 20.0], [700.0, 30.0]])
    assert median(stack).tolist() == [2.0, 30.0]
    assert trimmed_mean(stack, 1).tolist() == [2.0, 30.0]


def test_krum_takes_the_gradient_in_the_thickest_crowd() -> None:
    stack = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [5.0, 5.0], [0.05, 0.05]])
    assert torch.equal(krum(stack, 1), stack[4])


def test_two_workers_that_are_nearest_to_each_other_are_ordered_by_rank() -> None:
    stack = torch.tensor([[2.0], [1.0], [9.0]])
    assert krum(stack, 0).item() == krum(stack.flip(0), 0).item() == 1.0


@pytest.mark.parametrize("junk", [NAN, INF, -INF])
def test_what_is_no_number_is_put_away_and_counts_as_bad(junk: float) -> None:
    assert median(column(junk, 1, 2, 3, junk)).item() == 2
    # One of the two cuts was spent on the junk: nothing else is cut.
    assert trimmed_mean(column(junk, 1, 2, 6), 1).item() == 3
    assert trimmed_mean(column(junk, 1, 2, 3, 100), 2).item() == 2.5
    assert krum(column(junk, 1, 1.1, 1.2, 40), 1).item() in (1.0, 1.1, 1.2)


@pytest.mark.parametrize("junk", [NAN, INF])
def test_where_nothing_sound_is_left_the_result_is_nan(junk: float) -> None:
    stack = column(junk, junk, junk, junk, junk)
    for combined in (median(stack), trimmed_mean(stack, 1), krum(stack, 1)):
        assert combined.isnan().all()
    mixed = torch.cat([stack, column(1, 2, 3, 4, 5)], dim=1)
    assert median(mixed).isnan().tolist() == [True, False]


def test_huge_numbers_do_not_overflow_into_the_result() -> None:
    stack = torch.tensor([[3e38], [3e38], [3e38], [1.0], [1.0]])
    assert median(stack).item() == pytest.approx(3e38)
    assert trimmed_mean(stack, 2).item() == pytest.approx(3e38)
    tiny = torch.tensor([[1e-30], [2e-30], [2.1e-30], [8e-30], [-9e-30]])
    assert krum(tiny, 1).item() == pytest.approx(2e-30)  # its square is 0 in float32


@given(
    honest=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=9),
    lies=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=4),
    seed=st.integers(0, 1000),
)
def test_a_minority_of_lies_stays_without_influence(
    honest: list[float], lies: list[float], seed: int
) -> None:
    lies = lies[: (len(honest) - 1)]
    values = torch.tensor([*honest, *lies], dtype=torch.float64)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    stack = values[order].unsqueeze(1)
    for combined in (median(stack), trimmed_mean(stack, len(lies))):
        assert min(honest) <= combined.item() <= max(honest)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=7))
def test_trimming_nothing_is_the_mean(values: list[float]) -> None:
    stack = column(*values)
    assert trimmed_mean(stack, 0).item() == pytest.approx(mean(stack).item(), abs=1e-6)


def test_each_rule_states_how_many_workers_it_takes() -> None:
    assert [min_workers_for(way, 2) for way in ("median", "trimmed-mean", "krum")] == [5, 5, 7]
    assert min_workers_for("mine:function", 2) == 1
