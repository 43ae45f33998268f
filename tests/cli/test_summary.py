"""Summary lines that `paceline train` prints at the end."""

from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.cli.train_summary import summary_lines
from paceline.plan.codec import Json


@pytest.mark.parametrize(("loss", "is_said"), [(0.4, False), (float("nan"), True), (float("inf"), True)])
def test_a_diverged_run_is_reported_as_such(loss: float, *, is_said: bool) -> None:
    lines = summary_lines({"loss": loss}, small_plan("ssgd"), Path("runs/one"))
    assert any(line.startswith("diverged") for line in lines) == is_said


def test_throughput_traffic_and_staleness_have_a_line_each() -> None:
    result: dict[str, Json] = {
        "loss": 0.5,
        "metrics": {"test_accuracy": 0.918},
        "samples_per_s": 3100.0,
        "wall_s": 2.0,
        "bytes": {"out": 64_000, "in": 64_000},
        "phases_s": {"forward": 1.0, "backward": 2.0, "wait": 1.0, "delay": 0.0},
        "staleness": {"mean": 1.5, "max": 4, "histogram": {}},
        "stopped_early": False,
    }
    lines = summary_lines(result, small_plan("ssp"), Path("runs/one"))
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["test_accuracy"] == "0.918"
    assert rows["throughput"] == "3.1k samples/s"
    assert rows["traffic"] == "64 kB sent, 64 kB received"
    assert rows["staleness"] == "mean 1.50, max 4 versions"
    assert any("forward 25%, backward 50%, wait 25%" in line for line in lines)
    assert not any("delay" in line for line in lines)


@pytest.mark.parametrize(
    "adapted",
    [
        None,
        {"count": 1, "way": "batch", "shares": "40,24"},
        {"count": 3, "way": "local-steps", "shares": "11,5"},
    ],
    ids=["never", "once", "3 times"],
)
def test_the_summary_of_adaptive_shows_its_final_policy(adapted: Json, wording: Wording) -> None:
    lines = summary_lines({"adapted": adapted}, small_plan("adaptive"), Path("runs/one"))
    rows = dict(line.split(maxsplit=1) for line in lines)
    wording(rows["adapted"])
