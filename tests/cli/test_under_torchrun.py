"""Is every way of starting `python -m paceline.worker` wrongly one clear error with an exit code?"""

from pathlib import Path

import pytest
from tests.fixtures.torchrun import WORKER, free_port, python


def _variables(**changes: str) -> dict[str, str]:
    usual = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {name: value for name, value in {**usual, **changes}.items() if value}


@pytest.mark.parametrize(
    ("variables", "args", "code", "words"),
    [
        ({"MASTER_PORT": ""}, (), 3, "MASTER_PORT is not"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ("--timeout", "1s"), 4, "nobody listens at 127.0.0.1"),
        ({"WORLD_SIZE": "2"}, ("--timeout", "1s"), 5, "waited 1 s for rank 1 of 2 to come"),
        ({"WORLD_SIZE": "none"}, (), 3, "WORLD_SIZE is 'none'"),
        ({}, ("--num-workers", "3"), 3, "num_workers is 3, but WORLD_SIZE is 1"),
        ({}, ("--nonsense",), 2, "--nonsense"),
        ({}, ("--config", "missing.yaml"), 3, "cannot read missing.yaml"),
    ],
    ids=["half set", "no master", "a rank is missing", "no number", "num_workers", "usage", "no file"],
)
def test_a_wrong_start_is_one_clear_error(
    variables: dict[str, str], args: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    done = python(*WORKER, *args, folder=tmp_path, variables=_variables(**variables))
    assert done.code == code, done.err
    assert words in done.err
    assert done.err.count("error[E") == 1, done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_alone_it_trains_as_one_process_and_prints_what_train_prints(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: xor\nsteps: 5\nmode: ddp\nrun_dir: run\n")
    done = python(*WORKER, "--config", "config.yaml", "--set", "steps=6", "--json", folder=tmp_path)
    assert done.code == 0, done.err
    assert done.data()["result"]["gradients"] == 6
    again = python(*WORKER, "--config", "config.yaml", folder=tmp_path)
    assert again.code == 3
    assert "already holds a run" in again.err
