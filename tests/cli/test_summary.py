"""Does the last word of a run say what its numbers are worth?"""

from pathlib import Path

import pytest
from tests.fixtures.plans import small_plan

from paceline.cli.train_summary import summary_lines


@pytest.mark.parametrize(("loss", "is_said"), [(0.4, False), (float("nan"), True), (float("inf"), True)])
def test_a_run_that_diverged_says_so(loss: float, *, is_said: bool) -> None:
    lines = summary_lines({"loss": loss}, small_plan("ssgd"), Path("runs/one"))
    assert any(line.startswith("diverged") for line in lines) == is_said
