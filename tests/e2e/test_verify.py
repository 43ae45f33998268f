"""Does `paceline verify` find every share of a whole run's work, in every mode that counts its own way?"""

from pathlib import Path

import pytest
from tests.fixtures.command import paceline

from paceline.plan.catalog import MODES

ONLY_WITH_PROCESSES = ("ddp", "fsdp")


@pytest.mark.parametrize("mode", [name for name in MODES if name not in ONLY_WITH_PROCESSES])
def test_a_run_that_nobody_disturbed_is_whole(mode: str, tmp_path: Path) -> None:
    workers = "1" if mode == "single" else "2"
    adam = ["--optimizer", "adam"] if MODES[mode].optimizers else []
    work = ["--task", "xor", "--mode", mode, "--num-workers", workers, "--steps", "12", *adam]
    made = paceline("train", *work, "--launcher", "virtual", "--run-dir", str(tmp_path / "run"))
    assert made.code == 0, made.err
    seen = paceline("verify", str(tmp_path / "run"))
    assert seen.code == 0, seen.out + seen.err
