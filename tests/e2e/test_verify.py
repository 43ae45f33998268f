"""`paceline verify` accounts for every share of a run's work, in every mode."""

from pathlib import Path

import pytest
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES

ONLY_WITH_PROCESSES = ("ddp", "fsdp")


@pytest.mark.parametrize("mode", [name for name in MODES if name not in ONLY_WITH_PROCESSES])
def test_an_undisturbed_run_is_complete(mode: str, launcher: LocalLauncher, tmp_path: Path) -> None:
    workers = "1" if mode == "single" else "2"
    adam = ["--optimizer", "adam"] if MODES[mode].optimizers else []
    work = ["--task", "xor", "--mode", mode, "--num-workers", workers, "--steps", "12", *adam]
    made = warm_paceline(
        launcher, "train", *work, "--launcher", "virtual", "--run-dir", "run", folder=tmp_path
    )
    assert made.code == 0, made.err
    seen = warm_paceline(launcher, "verify", "run", folder=tmp_path)
    assert seen.code == 0, seen.out + seen.err
