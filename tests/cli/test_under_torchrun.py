"""Every wrong way to start `python -m paceline.worker` is one clear error with an exit code."""

from pathlib import Path

import pytest
from tests.fixtures.runs.torchrun import WORKER, free_port, python
from tests.fixtures.wording import Wording

from paceline.core.errors import ExitCode


def _variables(**changes: str) -> dict[str, str]:
    usual = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {name: value for name, value in {**usual, **changes}.items() if value}


@pytest.mark.parametrize(
    ("variables", "args", "code"),
    [
        ({"MASTER_PORT": ""}, (), 3),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("--timeout", "1s"), 4),
        ({"WORLD_SIZE": "2"}, ("--timeout", "1s"), 5),
        ({"WORLD_SIZE": "none"}, (), 3),
        ({}, ("--num-workers", "3"), 3),
        ({}, ("--nonsense",), 2),
        ({}, ("--config", "missing.yaml"), 3),
    ],
    ids=["half set", "no master", "a rank is missing", "no number", "num_workers", "usage", "no file"],
)
def test_a_wrong_start_is_one_clear_error(
    variables: dict[str, str], args: tuple[str, ...], code: int, tmp_path: Path, wording: Wording
) -> None:
    result = python(*WORKER, *args, folder=tmp_path, variables=_variables(**variables))
    assert result.code == code, result.err
    assert result.err.count("error[E") == 1, result.err
    if code != ExitCode.USAGE:  # whose text is click's
        (error,) = (line for line in result.err.splitlines() if "error[E" in line)
        wording(error)
    assert "Traceback" not in result.err
    assert result.out == ""


def test_alone_it_trains_as_one_process_and_prints_what_train_prints(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: xor\nsteps: 5\nmode: ddp\nrun_dir: run\n")
    result = python(*WORKER, "--config", "config.yaml", "--set", "steps=6", "--json", folder=tmp_path)
    assert result.code == 0, result.err
    assert result.data()["result"]["gradients"] == 6
    again = python(*WORKER, "--config", "config.yaml", folder=tmp_path)
    assert again.code == 3
    assert "error[E106]: " in again.err
