"""Cells of a comparison hold the statistics of their runs; expected values are computed by hand."""

import math

import pytest
from tests.comparison.made import default_runs, run, runs

from paceline.comparison.assess import NO_DIFFERENCE, ONE_REPEAT, assess, quality_of, scaling_of, target_of
from paceline.comparison.schema import Evaluated, Quality
from paceline.events.performance import LossPoint


def test_speedup_is_the_baselines_median_time_over_the_modes_and_efficiency_that_over_workers() -> None:
    runs_by_name = default_runs()
    cells = assess(runs_by_name, "single", quality_of(runs_by_name), None)
    asgd = cells["asgd-4"]
    assert (asgd.seconds, asgd.seconds_all) == (2.5, (2.5, 2.6, 2.4))
    assert asgd.speedup.value == 8.0 / 2.5
    assert asgd.efficiency.value == asgd.speedup.value / 4
    assert asgd.speedup.low is not None
    assert asgd.efficiency.low == asgd.speedup.low / 4
    assert asgd.speed_in_words == "significantly faster"
    base = cells["single"]
    assert (base.speedup.value, base.speedup.low, base.efficiency.value) == (1.0, None, 1.0)
    assert base.speed_in_words == "the baseline"


def test_accuracy_is_compared_within_rounds() -> None:
    runs_by_name = default_runs()
    cells = assess(runs_by_name, "single", quality_of(runs_by_name), None)
    assert cells["ssgd-4"].quality_in_words == NO_DIFFERENCE  # the same in every round
    assert cells["asgd-4"].quality_in_words == NO_DIFFERENCE  # within its spread
    lost = cells["localsgd-4"]
    assert lost.quality_in_words == "significantly worse"
    assert lost.quality_difference is not None
    assert lost.quality_difference.value == pytest.approx(-0.05)


def test_with_one_repeat_nothing_is_significant() -> None:
    results = {"single": runs("single", 1, (8.0,), (0.9,)), "ssgd-4": runs("ssgd", 4, (2.0,), (0.5,))}
    cell = assess(results, "single", quality_of(results), None)["ssgd-4"]
    assert (cell.speed_in_words, cell.quality_in_words) == (ONE_REPEAT, ONE_REPEAT)
    assert (cell.speedup.low, cell.speedup.high) == (None, None)


def test_a_model_that_diverged_has_no_quality_and_that_is_reported() -> None:
    results = {
        "single": runs("single", 1, (8.0, 8.1), (0.9, 0.9)),
        "asgd-4": runs("asgd", 4, (2.0, 2.1), (0.9, math.nan)),
    }
    cell = assess(results, "single", quality_of(results), None)["asgd-4"]
    assert cell.quality is None
    assert cell.quality_all == (0.9, None)
    assert "diverged" in cell.quality_in_words


def test_histograms_and_phases_of_all_repeats_are_added_up() -> None:
    results = {
        "single": runs("single", 1, (8.0, 8.0), (0.9, 0.9)),
        "asgd-2": runs("asgd", 2, (4.0, 4.0), (0.9, 0.9), histogram={"0": 1, "2": 3}, waiting=0.25),
    }
    cell = assess(results, "single", quality_of(results), None)["asgd-2"]
    assert cell.staleness is not None
    assert (cell.staleness.mean, cell.staleness.max) == (1.5, 2)
    assert cell.staleness.histogram == {"0": 2, "2": 6}
    assert cell.phases["wait"] == pytest.approx(0.25)
    assert sum(cell.phases.values()) == pytest.approx(1.0)
    assert cell.bytes_out == 1_000_000


def test_the_target_is_what_every_run_reaches_unless_one_is_given() -> None:
    quick = [LossPoint(1.0, 100, 0.9), LossPoint(2.0, 200, 0.3), LossPoint(3.0, 300, 0.1234)]
    slow = [LossPoint(2.0, 100, 0.9), LossPoint(4.0, 200, 0.5), LossPoint(6.0, 300, 0.45678)]
    results = {"single": [run("single", 1, 6.0, points=slow)], "ssgd-4": [run("ssgd", 4, 3.0, points=quick)]}
    target = target_of(results)
    assert target is not None
    assert (target.value, target.is_chosen) == (0.457, True)
    cells = assess(results, "single", None, target)
    assert (cells["single"].target_s, cells["ssgd-4"].target_s) == (6.0, 2.0)
    requested = target_of(results, wanted_loss=0.2)
    assert requested is not None
    cells = assess(results, "single", None, requested)
    assert (cells["single"].target_s, cells["ssgd-4"].target_s) == (None, 3.0)


def test_evaluations_make_the_target_where_every_run_has_them() -> None:
    seen = tuple(
        Evaluated(seconds=s, samples=100, metrics={"valid_loss": 1 - a, "valid_accuracy": a})
        for s, a in ((1.0, 0.5), (2.0, 0.8), (3.0, 0.9))
    )
    results = {
        "single": [run("single", 1, 6.0, evaluations=seen)],
        "ssgd-4": [run("ssgd", 4, 3.0, evaluations=seen[:2])],
    }
    target = target_of(results)
    assert target is not None
    assert (target.what, target.value) == ("valid_accuracy", 0.8)
    assert assess(results, "single", quality_of(results), target)["single"].target_s == 2.0
    requested = target_of(results, wanted_accuracy=0.85)
    assert requested is not None
    cells = assess(results, "single", quality_of(results), requested)
    assert (cells["single"].target_s, cells["ssgd-4"].target_s) == (3.0, None)


def test_where_some_runs_are_evaluated_at_the_end_only_the_training_loss_makes_the_target() -> None:
    seen = (Evaluated(seconds=1.0, samples=100, metrics={"valid_accuracy": 0.5}),)
    results = {"single": [run("single", 1, 6.0, evaluations=seen)], "asgd-4": [run("asgd", 4, 3.0)]}
    target = target_of(results)
    assert target is not None
    assert not target.is_evaluated
    requested = target_of(results, wanted_accuracy=0.4)
    assert requested is not None
    cells = assess(results, "single", quality_of(results), requested)
    assert (cells["single"].target_s, cells["asgd-4"].target_s) == (1.0, None)


def test_test_accuracy_is_taken_before_any_other_metric() -> None:
    assert quality_of(default_runs()) == Quality(name="test_accuracy", is_share=True)


def test_scaling_is_fitted_only_where_there_are_two_numbers_of_workers() -> None:
    runs_by_name = default_runs()
    assert scaling_of(assess(runs_by_name, "single", None, None)) == {}
    runs_by_name["ssgd-2"] = runs("ssgd", 2, (6.0, 6.0, 6.0), (0.9, 0.9, 0.9))
    assert list(scaling_of(assess(runs_by_name, "single", None, None))) == ["ssgd"]
