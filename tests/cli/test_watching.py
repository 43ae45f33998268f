"""Progress of a run: the line, the bar, the shown speed and the remaining time."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from paceline.core.humanize import short_bytes, short_duration, short_number
from paceline.training.progress import LineWatcher, Progress, RecentSpeed, progress_text
from paceline.training.progress_display import open_bar


def at(step: int, elapsed_s: float, *, loss: float | None = 0.412) -> Progress:
    return Progress(
        step=step,
        total_steps=2000,
        loss=loss,
        samples_per_s=3100.0,
        workers_alive=8,
        num_workers=8,
        elapsed_s=elapsed_s,
        steps_per_s=step / elapsed_s if elapsed_s else None,
    )


def test_a_line_has_the_documented_form() -> None:
    expected = "step 400/2000 20% loss 0.412 8/8 workers 3.1k samples/s eta 2m10s"
    assert progress_text(at(400, 32.5)) == expected


def test_a_line_copes_with_what_is_not_known_yet() -> None:
    assert progress_text(at(0, 0.0, loss=None)) == "step 0/2000 0% 8/8 workers 3.1k samples/s eta ?"


def test_the_remaining_time_is_estimated_from_the_pace_of_the_steps_and_not_from_the_start_up() -> None:
    resumed = replace(at(1000, 60.0), steps_per_s=50.0)
    assert progress_text(resumed).endswith("eta 20s")


def test_lines_come_per_tenth_or_per_ten_seconds() -> None:
    stream = io.StringIO()
    watcher = LineWatcher(stream, now_s=lambda: 0.0)
    for step, elapsed_s in [
        (0, 0.0),
        (10, 1.0),
        (200, 2.0),
        (210, 3.0),
        (220, 12.5),
        (230, 13.0),
        (2000, 14.0),
    ]:
        watcher.progress(at(step, elapsed_s))
    steps = [line.split()[2] for line in stream.getvalue().splitlines()]
    assert steps == ["200/2000", "220/2000", "2000/2000"]


def test_the_bar_shows_loss_speed_and_notes_above() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with open_bar("xor-ssgd", colour=False, console=console) as bar:
        bar.progress(at(400, 32.5))
        bar.note("a [note] as it is")
    shown = screen.getvalue()
    for part in ("xor-ssgd", "400/2000", "loss 0.412", "8/8 workers", "eta 2m10s", "a [note] as it is"):
        assert part in shown


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (3.14159, "3.14"), (950, "950"), (3100, "3.1k"), (81_500, "81.5k"), (2e9, "2G")],
)
def test_short_numbers(number: float, text: str) -> None:
    assert short_number(number) == text


def test_short_bytes_and_durations() -> None:
    assert [short_bytes(n) for n in (12, 64_000, 1.5e9)] == ["12 B", "64 kB", "1.5 GB"]
    durations = [short_duration(s) for s in (0.42, 9.1, 59.6, 130, 11_100, float("inf"))]
    assert durations == ["0.42s", "9.1s", "1m00s", "2m10s", "3h05m", "?"]


def test_the_speed_shown_is_the_present_one() -> None:
    speed = RecentSpeed()
    speed.begin(0.0)
    for second in range(1, 101):
        speed.take(float(second), 1000.0 * second, float(second))
        speed.begin(float(second))  # a replacement that starts does not restart the clock
        assert speed.samples_per_s == pytest.approx(1000.0)
    speed.take(100.5, 100_500.0, 100.5)
    assert speed.samples_per_s == pytest.approx(1000.0)
    for second in range(101, 201):
        speed.take(float(second), 100_500.0 + 10.0 * (second - 100), 100.5 + 0.01 * (second - 100))
    assert speed.samples_per_s == pytest.approx(10.0)
    assert speed.steps_per_s == pytest.approx(0.01)


def test_a_speed_is_unknown_rather_than_impossible() -> None:
    speed = RecentSpeed()
    speed.begin(5.0)
    assert speed.samples_per_s is None
    for at_s in (5.0, 5.000_000_001):  # all at once: nothing can be divided by no time
        speed.take(at_s, 10_240.0, 10.0)
        assert speed.samples_per_s is None
    assert progress_text(replace(at(400, 32.5), samples_per_s=None)).endswith("? samples/s eta 2m10s")


def test_an_evaluation_is_no_time_of_training() -> None:
    speed = RecentSpeed()
    speed.begin(0.0)
    speed.take(1.0, 100.0, 1.0)
    speed.take(9.0, 100.0, 1.0)  # while the evaluation ran; its 8 s are subtracted afterwards
    speed.take(2.0, 200.0, 2.0)
    assert speed.samples_per_s == pytest.approx(100.0)


def test_a_run_that_went_back_while_it_was_evaluated_is_measured_at_once() -> None:
    speed = RecentSpeed()
    speed.begin(0.0)
    speed.take(1.0, 100.0, 1.0)
    speed.take(9.0, 50.0, 0.5)
    speed.take(2.0, 60.0, 0.6)
    speed.take(3.0, 160.0, 1.6)
    assert speed.samples_per_s == pytest.approx(100.0)


def test_a_run_that_went_back_to_a_checkpoint_begins_to_measure_again() -> None:
    speed = RecentSpeed()
    speed.begin(0.0)
    speed.take(10.0, 1000.0, 10.0)
    speed.take(11.0, 500.0, 5.0)
    assert speed.samples_per_s is None
    speed.take(12.0, 600.0, 6.0)
    assert speed.samples_per_s == pytest.approx(100.0)
