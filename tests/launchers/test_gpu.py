"""Tests that need a GPU. Skipped, loudly, where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Device, Launcher, Transport
from paceline.sync.fault_rules import StragglerRule

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


@pytest.mark.parametrize("mode", ["ps", "asgd", "ssp"])
def test_a_store_in_the_gpus_memory_trains_like_one_in_shared_memory(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(mode, num_workers=3)
    here = real(plan, tmp_path / "cpu", launcher)
    there = real(replace(plan, device=Device.CUDA, transport=Transport.CUDA_IPC), tmp_path / "gpu", launcher)
    assert there.positions() == here.positions()
    assert there.result["bytes"] == here.result["bytes"]
    if mode == "ps":  # the others depend on who was first
        assert there.result["loss"] == pytest.approx(here.result["loss"], rel=1e-9)


@pytest.mark.parametrize("transport", [Transport.CUDA_IPC, Transport.TCP], ids=["cuda-ipc", "tcp"])
def test_late_workers_abandon_their_step_on_a_gpu_too(
    transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """With batch norm: what an abandoned forward pass still writes must not reach the next read."""
    sleeper = (StragglerRule(worker=3, delay_s=3600.0),)
    plan = small_plan("backup", num_workers=4, stragglers=sleeper, task_options={"batch_norm": True})
    run = real(replace(plan, device=Device.CUDA, transport=transport), tmp_path, launcher)
    assert run.positions() == list(range(plan.total_gradients))
    assert 3 not in run.history.steps
    assert run.history.abandoned[3]


@pytest.mark.parametrize("mode", ["ssgd", "localsgd", "diloco", "asgd"])
def test_virtual_workers_on_a_gpu_learn_what_they_learn_on_a_cpu(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = replace(
        small_plan(mode, num_workers=4, pace_s=0.01), launcher=Launcher.VIRTUAL, transport=Transport.NONE
    )
    here = real(plan, tmp_path / "cpu", launcher)
    there = real(replace(plan, device=Device.CUDA, vmap=True), tmp_path / "gpu", launcher)
    assert there.positions() == here.positions()
    assert there.result["loss"] == pytest.approx(here.result["loss"], rel=1e-9)
