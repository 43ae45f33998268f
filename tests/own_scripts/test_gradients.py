"""Gradients that are missing, or that count unequally, are those of one process."""

from pathlib import Path

import pytest
import torch
from tests.own_scripts.test_run_script import codes_of, result_of, run_script
from torch import Tensor

from paceline.launchers.local import LocalLauncher

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "heads_script.py"


def trained(
    launcher: LocalLauncher, folder: Path, *flags: str, arguments: tuple[str, ...] = ()
) -> tuple[dict[str, Tensor], dict[str, float]]:
    folder.mkdir()
    result = result_of(run_script(launcher, folder, *flags, arguments=arguments, script=SCRIPT), folder)
    metrics = result["metrics"]
    assert isinstance(metrics, dict)
    return torch.load(folder / "run" / "model.pt"), metrics


@pytest.mark.parametrize(
    "flags",
    [
        ("--mode", "ssgd", "--num-workers", "2"),
        ("--mode", "ssgd", "--num-workers", "2", "--elastic", "--shards", "4"),
        ("--mode", "ps", "--num-workers", "2"),
    ],
)
def test_workers_compute_what_one_process_does(
    flags: tuple[str, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    """A frozen layer and an unused one stay as they are; each loss counts by its number of entries."""
    alone, _ = trained(launcher, tmp_path / "alone", "--mode", "single")
    together, metrics = trained(launcher, tmp_path / "together", *flags, arguments=("weight=count",))
    assert all(torch.allclose(together[name], alone[name], atol=1e-5) for name in alone)
    assert metrics["changed"] == 4  # two heads
    assert metrics["epoch"] == 2  # of run.epochs(1, 3)


@pytest.mark.parametrize(
    ("flags", "arguments", "code"),
    [
        (("--mode", "ssgd", "--num-workers", "5"), ("weight=count",), "E129"),
        (("--mode", "adaptive", "--num-workers", "2"), ("weight=count",), "E129"),
    ],
)
def test_weights_need_shares_of_equal_size(
    flags: tuple[str, ...], arguments: tuple[str, ...], code: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, *flags, arguments=arguments, script=SCRIPT)
    assert done.code == 3
    assert code in codes_of(done)
