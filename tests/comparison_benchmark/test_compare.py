"""What do measured runs say side by side? Worked out on paper."""

import math

import pytest
from tests.comparison.made import MACHINE
from tests.comparison_benchmark.made import run

from paceline.comparison.benchmark.assess import Runs, compare
from paceline.comparison.benchmark.schema import Benchmark, default_warm_up, steady_rate


def compared(runs: Runs, subject: str = "ray") -> Benchmark:
    return compare(runs, baseline="baseline", subject=subject, task="cifar10", machine=MACHINE)


def pair(**changes: float) -> Runs:
    base = run("baseline", 1, 100.0, 50.0)
    ray = run("ray", 2, 80.0, 90.0, on_ray=True, **changes)  # type: ignore[arg-type]  # of the fields named
    return {"baseline": [base], "ray": [ray]}


def test_speedup_and_efficiency_are_said_of_the_total_time_and_of_the_steady_rate() -> None:
    found = compared(pair())
    assert (found.speedup, found.efficiency) == (1.25, 0.625)
    assert found.speedup_steady == pytest.approx(1.8)
    assert found.efficiency_steady == pytest.approx(0.9)
    assert found.num_workers == 2
    (speed, batch, quality) = found.says
    assert batch == "The global batch was 100 on both sides: 100 for one, 50 for each of 2."
    assert "80.00 s in all, alone 100 s: a speedup of 1.25×, efficiency 62 %" in speed
    assert "After the first epoch it was 1.80× as fast, efficiency 90 %." in speed
    assert quality == "Test accuracy was 70.0 %, against 70.0 %: +0.0 points."


def test_the_baseline_is_compared_with_itself_and_comes_first() -> None:
    runs = dict(reversed(list(pair().items())))
    found = compared(runs)
    assert list(found.rows) == ["baseline", "ray"]
    assert found.rows["baseline"].speedup_total.value == 1.0
    assert found.rows["baseline"].quality_difference is None


def test_accuracy_that_was_lost_beyond_two_points_is_warned_of() -> None:
    found = compared(pair(accuracy=0.66))
    assert found.accuracy_lost == pytest.approx(0.04)
    assert any("lost 4.0 points of test accuracy, more than 2" in text for text in found.warnings)
    assert not any("lost" in text for text in compared(pair(accuracy=0.69)).warnings)


def test_another_global_batch_is_said_and_warned_of() -> None:
    found = compared({"baseline": [run("baseline", 1, 9, 9)], "ray": [run("ray", 2, 9, 9, batch=200)]})
    assert found.global_batch is None
    told = "The global batch was not the same for all: alone 100, ray 200."
    assert told in found.says
    assert told in found.warnings


def test_a_run_without_a_steady_part_has_a_total_only() -> None:
    found = compared({"baseline": [run("baseline", 1, 9.0, None)], "ray": [run("ray", 2, 6.0, 5.0)]})
    assert found.speedup == 1.5
    assert found.speedup_steady is None
    assert "too short for a steady rate" in found.says[0]


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


def test_a_reader_is_warned_of_starts_that_are_most_of_the_time() -> None:
    found = compared(pair(first_step_s=70.0))
    assert any("before the first step (ray)" in text for text in found.warnings)


def test_the_steady_rate_leaves_the_first_steps_out() -> None:
    starts = [0.0, 5.0, 6.0, 7.0, 8.0]  # the first step took five seconds, the others one each
    assert steady_rate(starts, 10, 1) == 10.0
    assert steady_rate(starts, 10, 4) is None
    assert [default_warm_up(steps) for steps in (3, 100, 1000)] == [1, 10, 20]
