"""A returned result equals the run folder, and is safe to show in a notebook."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.fixtures.processes.command import paceline as command
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real
from tests.fixtures.wording import Wording

from paceline.api.result import from_json, read_result
from paceline.core.errors import PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import EventDetail


def test_the_numbers_losses_and_weights_of_a_run(launcher: LocalLauncher, tmp_path: Path) -> None:
    run = real(small_plan("asgd", steps=20), tmp_path / "run", launcher)
    result = read_result(run.run_dir)
    assert result.metrics == run.result["metrics"]
    assert (result.loss, result.wall_s) == (run.result["loss"], run.result["wall_s"])
    assert (result.mode, result.workers, result.stopped_early) == ("asgd", 2, False)
    assert result.staleness is not None
    losses = result.losses()
    recorded = [row.loss for rows in run.history.steps.values() for row in rows]
    assert list(losses.steps) == list(range(20))
    assert losses.values.mean() == pytest.approx(np.mean(recorded), rel=1e-12)
    assert losses.seconds.min() > 0
    out = tmp_path / "weights.safetensors"
    assert command("checkpoint", "export", str(run.run_dir), "--out", str(out)).code == 0
    weights, exported = result.weights(), load_file(out)
    assert weights.keys() == exported.keys() != set()
    assert all(np.array_equal(weights[name], exported[name]) for name in weights)


def test_a_run_without_events_has_no_losses(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    run = real(small_plan("single", events=EventDetail.OFF), tmp_path / "run", launcher)
    result = read_result(run.run_dir)
    assert (result.loss, result.bytes_out, result.steps) == (None, None, None)
    with wording.raises(PacelineError):
        result.losses()


def example(**changes: object) -> dict[str, object]:
    return {
        "run": "<script>alert(1)</script>",
        "task": "a:<b>",
        "mode": "ssgd",
        "num_workers": 2,
        "wall_s": 1.5,
        "metrics": {"<i>": 0.25},
        "stopped_early": True,
        **changes,
    }


def test_a_notebook_table_contains_no_markup_but_its_own() -> None:
    shown = from_json(json.loads(json.dumps(example())), Path("/tmp/<run>"))._repr_html_()
    assert shown.startswith("<table><caption>run &lt;script&gt;")
    assert "<script" not in shown
    assert "<i>" not in shown
    assert "/tmp/&lt;run&gt;" in shown
    assert "<td>0.25</td>" in shown


def test_evaluations_are_typed_and_leave_out_what_is_not_finite() -> None:
    seen = {
        "step": 4,
        "samples": 64,
        "seconds": 0.5,
        "took_s": 0.1,
        "metrics": {"valid_loss": 0.25, "f1": None},
    }
    result = from_json(
        json.loads(json.dumps(example(evaluations=[seen], stopped_by="early stop: no better"))), Path()
    )
    (only,) = result.evaluations
    assert (only.step, only.samples, only.seconds, only.metrics) == (4, 64, 0.5, {"valid_loss": 0.25})
    assert "<td>early stop: no better</td>" in result._repr_html_()


def test_a_result_cannot_be_changed() -> None:
    result = from_json(json.loads(json.dumps(example())), Path("x"))
    with pytest.raises(FrozenInstanceError):
        result.loss = 0.0  # type: ignore[misc]  # that is the mistake
