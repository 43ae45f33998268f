"""The memory of a view is bounded: rows and samples are columns, and the oldest are dropped."""

import math

import pytest

from paceline.monitoring.alerts.engine import Memory
from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.metrics.catalog import Sample
from paceline.monitoring.metrics.series import COARSE, MEDIUM, Ring, Series
from paceline.monitoring.view.worker_track import Batch, Lane, LaneRow


def a_row(step: int, loss: float = 1.5) -> LaneRow:
    return (step, step * 0.1, 0.01, 0.02, 0.03, 0.0, 0.001, 0.0, 0.004, 0.005, loss)


def test_a_lane_keeps_the_newest_rows_in_order() -> None:
    lane = Lane(5)
    for step in range(12):
        lane.extend([a_row(step)])
    assert len(lane) == 5
    assert [row[0] for row in lane.between(0.0, 99.0, 100)] == [7, 8, 9, 10, 11]
    assert [row[0] for row in lane.between(0.0, 99.0, 2)] == [10, 11], "of too many, the newest"
    assert [row[0] for row in lane.between(0.85, 0.95, 100)] == [8, 9], "8 lasts until 0.87"
    assert lane.between(0.9, 0.95, 1) == [a_row(9)], "seven digits are kept of a duration"


def test_a_batch_returns_the_content_of_the_line() -> None:
    rows = [a_row(3, 0.1 + 0.2), a_row(4, math.inf)]
    assert list(Batch(7, "worker-0", rows).rows()) == rows
    (lost,) = Batch(8, "worker-0", [a_row(5, math.nan)]).rows()
    assert math.isnan(lost[10])


def test_a_number_of_each_second_takes_a_third_and_its_peaks_stay_where_buckets_are_wide() -> None:
    single, whole = Ring(*MEDIUM, has_range=False), Ring(*COARSE)
    for second in range(20):
        for ring in (single, whole):
            ring.add(second, 100.0 if second == 13 else 1.0)
    assert single.between(13, 14) == [(13.0, 100.0, 100.0, 100.0), (14.0, 1.0, 1.0, 1.0)]
    assert whole.between(0, 19) == [(0.0, 1.0, 1.0, 1.0), (10.0, 1.0, 100.0, 1.0)]


@pytest.mark.parametrize("is_fast", [False, True])
def test_rings_stop_growing(is_fast: bool) -> None:
    series = Series(unit="s", group="training", is_fast=is_fast)
    step_s = 900.0
    for number in range(400):  # more than four days
        series.add(number * step_s, float(number))
    assert all(len(ring) <= ring_most * 17 / 16 for ring, ring_most in _with_their_most(series))
    assert series.read(0.0, 400 * step_s, 10_000)[-1][3] == 399.0


def _with_their_most(series: Series) -> list[tuple[Ring, int]]:
    return [(ring, ring._most) for ring in series._rings]


def test_what_rules_remember_stays_within_their_windows() -> None:
    memory = Memory(default_rules())
    name, labels = "paceline_worker_restarts_total", (("run", "r"), ("worker", "worker-0"))
    for second in range(3_000):
        memory.take(float(second), [Sample(name, labels, 0.0)])
    kept = memory._series[name][labels]
    assert [at_s for at_s, _ in kept.since(0.0)] == [float(s) for s in range(2_399, 3_000)], "ten minutes"
    assert len(kept._times) <= 601 * 8 / 7 + 2, "and hardly more than that is in memory"
    memory.take(9_000.0, [])
    assert not memory._series[name], "a series that ended long ago is gone"
