"""Scripts with several optimizers, in turn or together; half-prepared ones are refused."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.warm_command import warm_paceline
from tests.own_scripts.test_run_script import codes_of, result_of, run_script

from paceline.launchers.local import LocalLauncher

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "gan_script.py"


def hashes(launcher: LocalLauncher, folder: Path, *flags: str, arguments: tuple[str, ...] = ()) -> set[str]:
    folder.mkdir(exist_ok=True)
    states = result_of(run_script(launcher, folder, *flags, arguments=arguments, script=SCRIPT), folder)[
        "state_sha256"
    ]
    assert isinstance(states, dict)
    return set(states.values())


@pytest.mark.parametrize("mode", ["ssgd", "localsgd"])
def test_the_workers_of_a_gan_end_with_the_same_models(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    flags = ("--mode", mode, "--num-workers", "3")
    assert len(hashes(launcher, tmp_path, *flags, arguments=("every=3",))) == 1
    assert warm_paceline(launcher, "verify", "run", folder=tmp_path).code == 0


def test_a_resumed_gan_ends_with_the_bits_of_an_uninterrupted_one(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    flags = ("--num-workers", "2", "--seed", "3")
    whole = hashes(launcher, tmp_path / "whole", *flags)
    folder = tmp_path / "stopped"
    hashes(launcher, folder, *flags, arguments=("stop=9",))
    assert warm_paceline(launcher, "run", "--resume", "run", folder=folder).code == 0
    resumed = json.loads((folder / "run" / "result.json").read_text())
    assert set(resumed["state_sha256"].values()) == whole


@pytest.mark.parametrize("flags", [("--num-workers", "2"), ("--mode", "asgd", "--num-workers", "2")])
def test_optimizers_in_a_list_step_together_in_every_mode(
    flags: tuple[str, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, *flags, arguments=("prepare=together",), script=SCRIPT)
    assert result_of(done, tmp_path)["gradients"] == 32


@pytest.mark.parametrize(
    ("arguments", "flags", "code"),
    [
        (("prepare=generator",), ("--num-workers", "2"), "E137"),
        (("prepare=modules",), ("--num-workers", "2"), "E137"),
        ((), ("--mode", "asgd", "--num-workers", "2"), "E121"),
        ((), ("--elastic", "--num-workers", "2", "--shards", "2"), "E121"),
    ],
)
def test_half_of_a_gan_and_other_modes_are_refused(
    arguments: tuple[str, ...], flags: tuple[str, ...], code: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, *flags, arguments=arguments, script=SCRIPT)
    assert done.code == 3
    assert code in codes_of(done)
