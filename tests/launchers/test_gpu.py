"""Does what needs a GPU work on one? Skipped, loudly, where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.plans import small_plan
from tests.fixtures.runs import real

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Device, Launcher, Transport

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
