"""`torchrun train.py`: each process is a worker, and nothing in it sees torchrun's process group."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.processes.warm_helpers import THREADS
from tests.fixtures.runs.torchrun import QUICK, TORCHRUN, free_port, python, torchrun

from paceline.launchers.local import LocalLauncher

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "tasks"
SCRIPT = SCRIPTS / "logging_script.py"


def result_of(run_dir: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((run_dir / "result.json").read_text())
    return result


def test_ranks_end_with_the_bits_of_workers_that_paceline_starts(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    under = torchrun("--mode", "ssgd", "--run-dir", "torchrun", *QUICK, str(SCRIPT), "2", folder=tmp_path)
    assert under.code == 0, under.err
    flags = ("--num-workers", "2", "--transport", "gloo", "--run-dir", "local")
    own = warm_paceline(launcher, "run", *flags, str(SCRIPT), "2", folder=tmp_path)
    assert own.code == 0, own.err
    ranks = result_of(tmp_path / "torchrun")
    assert ranks["state_sha256"] == result_of(tmp_path / "local")["state_sha256"]
    assert ranks["metrics"] == {**metrics_of(tmp_path / "local"), "is_launched": 0.0}
    assert warm_paceline(launcher, "verify", "torchrun", folder=tmp_path).code == 0


def metrics_of(run_dir: Path) -> dict[str, float]:
    metrics = result_of(run_dir)["metrics"]
    assert isinstance(metrics, dict)
    return metrics


def test_a_script_that_a_launcher_starts_joins_its_run(tmp_path: Path) -> None:
    """With the variables that torchrun, a scheduler or an operator sets; the settings are variables, too."""
    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    settings = {"PACELINE_CONFIG": "settings.yaml", "PACELINE_SEED": "4"}
    (tmp_path / "settings.yaml").write_text("run_dir: mine\n")
    done = python(str(SCRIPT), "1", folder=tmp_path, variables={**launched, **settings, **THREADS})
    assert done.code == 0, done.err
    plan = json.loads((tmp_path / "mine" / "plan.json").read_text())
    assert (plan["mode"], plan["launcher"], plan["seed"]) == ("single", "torchrun", 4)
    assert metrics_of(tmp_path / "mine")["is_launched"] == 0.0


def test_a_script_that_a_rank_refuses_is_one_clear_error(tmp_path: Path) -> None:
    flags = ("--mode", "ssgd", *QUICK)
    done = torchrun(*flags, str(SCRIPTS / "own_script.py"), "clip=1", folder=tmp_path)
    assert done.code != 0
    assert done.err.count("error[E122]") == 1, done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["ssgd", "asgd", "localsgd"])
def test_accelerate_in_a_script_reports_one_process(mode: str, tmp_path: Path) -> None:
    done = python(
        *(*TORCHRUN, "--standalone", "--nproc_per_node=3", str(SCRIPTS / "accelerated_script.py")),
        folder=tmp_path,
        variables={"PACELINE_MODE": mode, "PACELINE_RUN_DIR": "run", **THREADS},
    )
    assert done.code == 0, done.err
    assert metrics_of(tmp_path / "run") == {"processes": 1.0, "index": 0.0}
    assert result_of(tmp_path / "run")["num_workers"] == 3
