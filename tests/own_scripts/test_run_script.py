"""`paceline run SCRIPT`: a loop of the user's own computes what a task computes, or is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.processes.command import CommandResult
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.launchers.local import LocalLauncher
from paceline.laws.lab import RANDOM_SPEEDS, Lab
from paceline.laws.scripts.loops import TASK, training
from paceline.laws.scripts.loops import run_script as run_virtual_script
from paceline.worker.participant import state_hash

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "own_script.py"
DRAWING_SCRIPT = SCRIPT.with_name("drawing_script.py")
LATE_SCRIPT = SCRIPT.with_name("late_script.py")
TWIN = ("--task", "tests.fixtures.tasks.script_twin:ScriptTwin")


def run_script(
    launcher: LocalLauncher,
    folder: Path,
    *flags: str,
    arguments: tuple[str, ...] = (),
    script: Path = SCRIPT,
) -> CommandResult:
    return warm_paceline(
        launcher, "run", "--run-dir", "run", *flags, "--json", str(script), *arguments, folder=folder
    )


def result_of(done: CommandResult, folder: Path) -> dict[str, object]:
    assert done.code == 0, done.out + done.err
    result: dict[str, object] = json.loads((folder / "run" / "result.json").read_text())
    return result


def codes_of(done: CommandResult) -> set[str]:
    return {problem["code"] for problem in json.loads(done.out)["error"]["problems"]}


@pytest.mark.parametrize("mode", ["single", "ssgd", "ps", "localsgd", "diloco"])
def test_a_script_ends_with_the_bits_of_the_same_task(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Dropout, BatchNorm and the order of samples included; the samples are shared by 3 workers."""
    workers = 1 if mode == "single" else 3
    flags = ("--mode", mode, "--num-workers", str(workers), "--seed", "5")
    script = result_of(run_script(launcher, tmp_path, *flags), tmp_path)
    own = ("--task", TWIN[1], "--steps", "16", "--batch-size", str(12 // workers), "--run-dir", "twin")
    twin = warm_paceline(launcher, "train", *flags, *own, folder=tmp_path)
    assert twin.code == 0, twin.err
    expected = json.loads((tmp_path / "twin" / "result.json").read_text())
    assert script["state_sha256"] == expected["state_sha256"]


@pytest.mark.parametrize("flags", [(), ("--elastic", "--shards", "2")])
def test_a_main_worker_that_is_too_late_for_any_step_still_evaluates(
    flags: tuple[str, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    flags = ("--mode", "asgd", "--num-workers", "2", *flags)
    done = run_script(launcher, tmp_path, *flags, arguments=(str(tmp_path / "done"),), script=LATE_SCRIPT)
    metrics = result_of(done, tmp_path)["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["at"] == 2  # the last epoch
    assert metrics["error"] < 0.5  # 5 before training


@pytest.mark.parametrize("mode", ["asgd", "backup", "gossip"])
def test_every_sample_is_used_once_also_where_workers_differ(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    result_of(run_script(launcher, tmp_path, "--mode", mode, "--num-workers", "3"), tmp_path)
    verified = warm_paceline(launcher, "verify", "run", folder=tmp_path)
    assert verified.code == 0, verified.out


def test_a_late_step_leaves_its_block_before_backward(launcher: LocalLauncher, tmp_path: Path) -> None:
    flags = ("--mode", "backup", "--num-workers", "3", "--backup-workers", "1")
    script = SCRIPT.with_name("turn_script.py")
    result = result_of(run_script(launcher, tmp_path, *flags, script=script), tmp_path)
    assert result["steps"] == 20
    assert (tmp_path / "run" / "left").exists()
    verified = warm_paceline(launcher, "verify", "run", folder=tmp_path)
    assert verified.code == 0, verified.out


@pytest.mark.parametrize(
    "flags",
    [
        ("--mode", "asgd"),
        ("--mode", "easgd", "--transport", "tcp"),
        ("--mode", "asgd", "--elastic", "--shards", "3"),
    ],
)
def test_behind_a_server_every_worker_ends_with_the_models_last_version(
    flags: tuple[str, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    run = run_script(launcher, tmp_path, *flags, "--num-workers", "3", arguments=("flat=1", "save=1"))
    states = result_of(run, tmp_path)["state_sha256"]
    assert isinstance(states, dict)
    saved = [torch.load(tmp_path / "run" / f"saved-{rank}.pt") for rank in range(3)]
    assert {state_hash(state) for state in saved} == set(states.values())


def test_the_wait_for_the_last_version_has_no_timeout() -> None:
    """A worker may still validate: of this run the others wait for nothing else."""
    plan = replace(Lab("asgd").plan(stragglers=RANDOM_SPEEDS), task=TASK, timeout_s=1e-9)
    run_virtual_script(plan, training)


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_the_server_has_the_rate_that_a_worker_would_have(
    unit: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    hashes = []
    for mode in ("ssgd", "ps"):
        folder = tmp_path / mode
        folder.mkdir()
        flags = ("--mode", mode, "--num-workers", "2")
        result = result_of(run_script(launcher, folder, *flags, arguments=(f"rate={unit}", "flat=1")), folder)
        states = result["state_sha256"]
        assert isinstance(states, dict)
        hashes.append(set(states.values()))
    assert hashes[0] == hashes[1]


def test_loader_processes_and_accumulation_do_not_change_the_samples(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, "--num-workers", "2", arguments=("loaders=1", "accumulate=4"))
    assert result_of(done, tmp_path)["steps"] == 4


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_a_script_that_stopped_is_resumed_with_its_optimizer_and_rate(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    flags = ("--mode", mode, "--num-workers", "2")
    stopped = result_of(run_script(launcher, tmp_path, *flags, arguments=("rate=step", "stop=5")), tmp_path)
    assert stopped["stopped_early"]
    assert warm_paceline(launcher, "run", "--resume", "run", folder=tmp_path).code == 0
    resumed = json.loads((tmp_path / "run" / "result.json").read_text())
    assert warm_paceline(launcher, "verify", "run", folder=tmp_path).code == 0
    whole = tmp_path / "whole"
    whole.mkdir()
    uninterrupted = result_of(run_script(launcher, whole, *flags, arguments=("rate=step",)), whole)
    assert resumed["state_sha256"] == uninterrupted["state_sha256"]


@pytest.mark.parametrize(
    ("arguments", "flags", "code"),
    [
        (("clip=1",), ("--num-workers", "2"), "E122"),
        (("raw=1",), ("--num-workers", "2"), "E136"),
        (("every=2",), ("--num-workers", "2"), "E135"),
        ((), ("--mode", "ddp"), "E124"),
        ((), ("--mode", "onebit"), "E124"),
        ((), ("--num-workers", "13"), "E129"),
        (("leave=3",), ("--num-workers", "2"), "E133"),
        (("scaler=1",), ("--num-workers", "2"), "E122"),
        (("twice=1",), ("--num-workers", "2"), "E135"),
        (("limit=1", "some=1"), ("--mode", "asgd"), "E134"),
    ],
)
def test_what_cannot_be_right_is_refused(
    arguments: tuple[str, ...], flags: tuple[str, ...], code: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, *flags, arguments=arguments)
    assert done.code == 3
    assert code in codes_of(done)


@pytest.mark.parametrize("argument", ["raw=1", "twice=1"])  # refused before the first step; by a worker
def test_a_refusal_names_the_line_of_the_script(
    argument: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, "--num-workers", "2", arguments=(argument,))
    (problem,) = json.loads(done.out)["error"]["problems"]
    call = "scaler.step(optimizer)" if argument == "raw=1" else "for x, y in loader]"
    lines = SCRIPT.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if call in text)
    assert f"{SCRIPT.name}:{line} " in problem["what"]


def test_a_server_clips_a_model_with_frozen_layers(launcher: LocalLauncher, tmp_path: Path) -> None:
    done = run_script(launcher, tmp_path, "--mode", "asgd", arguments=("limit=1", "frozen=1"))
    assert result_of(done, tmp_path)["gradients"] == 32  # one worker may have made them all


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_workers_share_the_samples_that_a_script_draws_itself(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, "--mode", mode, script=DRAWING_SCRIPT)
    result = result_of(done, tmp_path)
    assert (result["steps"], result["gradients"], result["samples"]) == (10, 20, 80)


@pytest.mark.parametrize(("argument", "code"), [("epochs", "E120"), ("all", "E129")])
def test_a_script_without_a_loader_needs_steps_and_shares(
    argument: str, code: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, "--num-workers", "2", arguments=(argument,), script=DRAWING_SCRIPT)
    assert done.code == 3
    assert codes_of(done) == {code}


def test_a_script_may_end_with_sys_exit(launcher: LocalLauncher, tmp_path: Path) -> None:
    done = run_script(launcher, tmp_path, "--num-workers", "2", arguments=("exit=1",))
    assert result_of(done, tmp_path)["steps"] == 16


def test_a_missing_file_and_settings_of_the_script_are_reported_together(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("lr: 0.1\n")
    done = warm_paceline(launcher, "run", "-c", str(settings), "--json", "none.py", folder=tmp_path)
    assert done.code == 3
    assert codes_of(done) == {"E105", "E120"}
