"""Comparison of measured runs; expected values are computed by hand."""

import math

import pytest
from tests.comparison.made import MACHINE
from tests.comparison_benchmark.made import run
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.assess import Runs, compare
from paceline.comparison.benchmark.schema import Benchmark, default_warm_up, steady_rate


def compared(runs: Runs, subject: str = "ray") -> Benchmark:
    return compare(runs, baseline="baseline", subject=subject, task="cifar10", machine=MACHINE)


def pair(**changes: float) -> Runs:
    base = run("baseline", 1, 100.0, 50.0)
    ray = run("ray", 2, 80.0, 90.0, on_ray=True, **changes)  # type: ignore[arg-type]  # of the fields named
    return {"baseline": [base], "ray": [ray]}


def test_speedup_and_efficiency_are_given_for_the_total_time_and_for_the_steady_rate(
    wording: Wording,
) -> None:
    benchmark = compared(pair())
    assert (benchmark.speedup, benchmark.efficiency) == (1.25, 0.625)
    assert benchmark.speedup_steady == pytest.approx(1.8)
    assert benchmark.efficiency_steady == pytest.approx(0.9)
    assert benchmark.num_workers == 2
    (speed, batch, quality) = benchmark.says
    for number in ("80.00 s", "1.25×", "62 %", "1.80×", "90 %"):
        assert number in speed
    for text in (speed, batch, quality):
        wording(text)


def test_the_baseline_is_compared_with_itself_and_comes_first() -> None:
    runs = dict(reversed(list(pair().items())))
    benchmark = compared(runs)
    assert list(benchmark.rows) == ["baseline", "ray"]
    assert benchmark.rows["baseline"].speedup_total.value == 1.0
    assert benchmark.rows["baseline"].quality_difference is None


def test_accuracy_that_was_lost_beyond_two_points_is_warned_of(wording: Wording) -> None:
    benchmark = compared(pair(accuracy=0.66))
    assert benchmark.accuracy_lost == pytest.approx(0.04)
    (warning,) = set(benchmark.warnings) - set(compared(pair(accuracy=0.69)).warnings)
    assert "4.0 points" in warning
    wording(warning)


def test_accuracy_lost_by_a_slower_contender_was_not_traded_for_speed(wording: Wording) -> None:
    """The same loss is told of a faster one as the cost of its speed."""
    base = run("baseline", 1, 100.0, 50.0)

    def warned(total_s: float, accuracy: float) -> set[str]:
        ray = run("ray", 2, total_s, 90.0, on_ray=True, accuracy=accuracy)
        return set(compared({"baseline": [base], "ray": [ray]}).warnings)

    (slower,) = warned(120.0, 0.66) - warned(120.0, 0.69)
    (faster,) = warned(80.0, 0.66) - warned(80.0, 0.69)
    assert slower != faster
    wording(slower)


def test_another_global_batch_is_reported_with_a_warning(wording: Wording) -> None:
    benchmark = compared({"baseline": [run("baseline", 1, 9, 9)], "ray": [run("ray", 2, 9, 9, batch=200)]})
    assert benchmark.global_batch is None
    (both,) = set(benchmark.says) & set(benchmark.warnings)
    assert "200" in both
    wording(both)


def test_a_run_without_a_steady_part_has_a_total_only(wording: Wording) -> None:
    benchmark = compared({"baseline": [run("baseline", 1, 9.0, None)], "ray": [run("ray", 2, 6.0, 5.0)]})
    assert benchmark.speedup == 1.5
    assert benchmark.speedup_steady is None
    wording(benchmark.says[0])


def test_repeats_give_medians_and_intervals_that_hold_them() -> None:
    times, rates = (10.0, 11.0, 30.0), (50.0, 55.0, 60.0)
    base = [run("baseline", 1, t, 25.0) for t in (20.0, 21.0, 22.0)]
    ray = [run("ray", 2, t, r) for t, r in zip(times, rates, strict=True)]
    row = compared({"baseline": base, "ray": ray}).rows["ray"]
    assert row.total_s == 11.0
    assert row.speedup_total.value == pytest.approx(21.0 / 11.0)
    assert row.speedup_total.low is not None
    assert row.speedup_total.low < 21.0 / 11.0 < (row.speedup_total.high or 0)
    assert row.speedup_steady is not None
    assert row.speedup_steady.value == pytest.approx(2.2)


def test_what_diverged_has_no_quality_but_a_time() -> None:
    row = compared(pair(accuracy=math.nan)).rows["ray"]
    assert row.quality is None
    assert row.metrics["test_accuracy"] is None
    assert row.speedup_total.value == 1.25


def test_a_reader_is_warned_of_starts_that_are_most_of_the_time(wording: Wording) -> None:
    benchmark = compared(pair(first_step_s=70.0))
    (warning,) = (text for text in benchmark.warnings if "(ray)" in text)
    wording(warning)


def test_the_steady_rate_leaves_the_first_steps_out() -> None:
    starts = [0.0, 5.0, 6.0, 7.0, 8.0]  # the first step took five seconds, the others one each
    assert steady_rate(starts, 10, 1) == 10.0
    assert steady_rate(starts, 10, 4) is None
    assert [default_warm_up(steps) for steps in (3, 100, 1000)] == [1, 10, 20]
