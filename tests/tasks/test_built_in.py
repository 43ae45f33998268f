"""The built-in tasks learn, in a real and short run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fixtures.runs.plans import small_plan

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Dtype
from paceline.tasks.load import load_task
from paceline.training.progress import SilentWatcher
from paceline.training.run import train


@pytest.mark.parametrize(("task", "least"), [("xor", 0.90), ("digits", 0.85)])
def test_a_short_single_run_learns_the_task(
    task: str, least: float, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan("single", task=task, steps=600, batch_sizes=(64,), dtype=Dtype.FLOAT32, seed=0)
    metrics = train(plan, tmp_path, SilentWatcher(), warm=launcher)["metrics"]
    assert isinstance(metrics, dict)
    accuracy = metrics["test_accuracy"]
    assert isinstance(accuracy, float)
    assert accuracy > least


@pytest.mark.parametrize("name", ["xor", "digits", "charlm"])
def test_a_task_is_the_same_each_time_it_is_built(name: str) -> None:
    one, other = (load_task(name, seed=5, options={}).samples() for _ in range(2))
    every = np.arange(len(one))
    mine, theirs = one.batch(every), other.batch(every)
    assert isinstance(mine, tuple)
    assert isinstance(theirs, tuple)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_xor_draws_other_points_with_another_seed_and_takes_options() -> None:
    points = [load_task("xor", seed=s, options={"num_samples": 50}).samples() for s in (0, 1)]
    assert [len(p) for p in points] == [50, 50]
    first, second = (p.batch(np.arange(50)) for p in points)
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert not torch.equal(first[0], second[0])


def test_digits_is_tested_on_writers_it_has_not_seen() -> None:
    assert len(load_task("digits", seed=0, options={}).samples()) == 1797 - 360
