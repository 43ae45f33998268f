"""`paceline check SCRIPT`: what it offers can be run, and what it finds is so."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.core.errors import ExitCode
from paceline.launchers.local import LocalLauncher

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "tasks"
SCRIPT = SCRIPTS / "checked_script.py"
REPEATED, HALVED, UNCHANGED, RATED = range(4)


def checked(
    launcher: LocalLauncher, folder: Path, *arguments: str, code: int, script: Path = SCRIPT
) -> dict[str, object]:
    done = warm_paceline(launcher, "check", "--json", str(script), *arguments, folder=folder)
    assert done.code == code, done.out + done.err
    data: dict[str, object] = json.loads(done.out)["data"]
    assert not list(folder.iterdir()), "nothing is recorded"
    return data


def holding(data: dict[str, object]) -> list[bool | None]:
    findings = data["findings"]
    assert isinstance(findings, list)
    return [finding["holds"] for finding in findings]


def modes_of(data: dict[str, object], key: str) -> set[str]:
    modes = data["modes"]
    assert isinstance(modes, list)
    return {mode["name"] for mode in modes if not mode[key]}


def test_a_sound_script_is_offered_every_mode_but_those_that_wrap_the_model(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """With augmentation, dropout and BatchNorm."""
    data = checked(launcher, tmp_path, code=ExitCode.OK)
    assert holding(data) == [True] * 4
    prepared = data["prepared"]
    assert isinstance(prepared, dict)
    assert (prepared["num_samples"], prepared["batch_size"], prepared["num_parameters"]) == (64, 8, 29)
    assert {"single", "ssgd", "asgd", "localsgd", "gossip", "adaptive"} <= modes_of(data, "reason")
    assert modes_of(data, "reason").isdisjoint({"ddp", "fsdp", "onebit"})
    assert modes_of(data, "not_elastic") < modes_of(data, "reason")


@pytest.mark.parametrize("is_elastic", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "sampled", [5, pytest.param(1, marks=pytest.mark.soak)], ids=["a few modes", "every mode"]
)
def test_what_is_offered_runs_and_verifies(
    sampled: int, is_elastic: bool, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """One worker more than the check had, with samples that 3 workers do not share equally."""
    data = checked(launcher, tmp_path, code=ExitCode.OK)
    key = "not_elastic" if is_elastic else "reason"
    for mode in sorted(modes_of(data, key))[::sampled]:
        workers = "1" if mode == "single" else "3"
        elastic = ("--elastic",) if is_elastic else ()
        flags = ("--mode", mode, "--num-workers", workers, *elastic, "--run-dir", mode)
        done = warm_paceline(launcher, "run", *flags, str(SCRIPT), folder=tmp_path)
        assert done.code == 0, f"{mode}: {done.err}"
        verified = warm_paceline(launcher, "verify", mode, folder=tmp_path)
        assert verified.code == 0, f"{mode}: {verified.out}"


@pytest.mark.parametrize(
    ("argument", "finding"),
    [
        ("data", REPEATED),
        ("state", REPEATED),
        ("sum", HALVED),
        ("noisy sum", HALVED),
        ("pairs", HALVED),
        ("clip", UNCHANGED),
    ],
)
def test_what_does_not_hold_is_found(
    argument: str, finding: int, launcher: LocalLauncher, tmp_path: Path
) -> None:
    assert holding(checked(launcher, tmp_path, argument, code=ExitCode.GATE_FAILED))[finding] is False


def test_rates_that_the_script_sets_leave_out_the_modes_with_a_server(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    data = checked(launcher, tmp_path, "rate", code=ExitCode.OK)
    assert holding(data)[RATED] is None
    assert modes_of(data, "reason").isdisjoint({"ps", "asgd", "ssp", "dssp", "backup", "easgd"})
    assert {"ssgd", "localsgd"} <= modes_of(data, "reason")


@pytest.mark.parametrize(("script", "argument"), [(SCRIPT, "random"), (SCRIPTS / "drawing_script.py", "any")])
def test_a_loss_that_cannot_be_compared_is_said_to_be_untried(
    script: Path, argument: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    data = checked(launcher, tmp_path, argument, code=ExitCode.OK, script=script)
    assert holding(data)[HALVED] is None


def test_accumulated_batches_are_divided_too(launcher: LocalLauncher, tmp_path: Path) -> None:
    own = SCRIPTS / "own_script.py"
    data = checked(launcher, tmp_path, "accumulate=4", "loaders=1", code=ExitCode.OK, script=own)
    assert holding(data) == [True] * 4
