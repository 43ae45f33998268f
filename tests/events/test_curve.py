"""The running loss means the same in every mode."""

import math

from paceline.events.performance import LossPoint, downsample, first_below, running_loss
from paceline.events.read import History, PlainEvent
from paceline.events.schema import StepRow


def step(number: int, start_ms: int, loss: float, *, samples: int = 4) -> StepRow:
    """It lasts 10 ms."""
    return StepRow(
        step=number,
        position=number,
        start_ns=start_ms * 1_000_000,
        data_ns=0,
        forward_ns=10_000_000,
        backward_ns=0,
        delay_ns=0,
        wait_ns=0,
        codec_ns=0,
        comm_ns=0,
        apply_ns=0,
        loss=loss,
        samples=samples,
        bytes_out=0,
        bytes_in=0,
        version=0,
        synced=True,
    )


def test_the_loss_of_a_moment_is_the_mean_over_the_last_samples_of_any_worker() -> None:
    history = History(
        steps={0: [step(0, 100, 4.0), step(1, 120, 2.0)], 1: [step(0, 110, 3.0), step(1, 130, 1.0)]}
    )
    assert running_loss(history, window=8) == [
        LossPoint(0.020, 8, 3.5),
        LossPoint(0.030, 12, 2.5),
        LossPoint(0.040, 16, 1.5),
    ]


def test_one_large_gradient_counts_like_many_small_ones() -> None:
    small = History(steps={0: [step(0, 0, 4.0), step(1, 10, 2.0)]})
    large = History(steps={0: [step(0, 0, 3.0, samples=8)]})
    assert running_loss(small, 8)[-1].loss == running_loss(large, 8)[-1].loss == 3.0


def test_a_loss_that_is_no_number_is_forgotten_with_its_window() -> None:
    rows = [step(0, 0, math.nan), step(1, 10, 1.0), step(2, 20, 1.0)]
    losses = [point.loss for point in running_loss(History(steps={0: rows}), 8)]
    assert math.isnan(losses[0])
    assert losses[1] == 1.0


def test_the_target_is_reached_at_the_first_moment_that_is_low_enough() -> None:
    points = [LossPoint(1.0, 1, 0.9), LossPoint(2.0, 2, 0.5), LossPoint(3.0, 3, 0.4)]
    assert first_below(points, 0.5) == 2.0
    assert first_below(points, 0.1) is None


def test_a_thinned_curve_keeps_its_ends() -> None:
    points = [LossPoint(float(i), i, 1.0) for i in range(1000)]
    few = downsample(points, 50)
    assert (len(few), few[0], few[-1]) == (50, points[0], points[-1])
    assert downsample(points[:10], 50) == points[:10]
    assert running_loss(History(), 8) == []


def test_the_time_of_evaluations_is_not_counted() -> None:
    seen = PlainEvent("evaluated", "worker-0", 1_010_000_000, {"took_s": 1.0})
    history = History(steps={0: [step(0, 0, 4.0), step(1, 1_010, 2.0)]}, plain=[seen])
    assert [point.seconds for point in running_loss(history, 4)] == [0.010, 0.020]
