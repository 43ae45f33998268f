"""State that a script keeps beside the model, and values on which its workers agree."""

import json
import signal
from pathlib import Path

import pytest
from tests.fixtures.processes.command import running_script
from tests.fixtures.processes.warm_command import warm_paceline
from tests.own_scripts.test_run_script import codes_of, result_of, run_script

from paceline.launchers.local import LocalLauncher

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "keeping_script.py"


def kept(launcher: LocalLauncher, folder: Path, *flags: str, arguments: tuple[str, ...] = ()) -> str:
    """What the main worker prints at its end: counters, evaluations and the moving average."""
    folder.mkdir(exist_ok=True)
    done = warm_paceline(launcher, "run", "--run-dir", "run", *flags, str(SCRIPT), *arguments, folder=folder)
    assert done.code == 0, done.err
    return _kept_line(done.err)


def _kept_line(output: str) -> str:
    (line,) = (line for line in output.splitlines() if "kept " in line)
    return line[line.index("kept ") :]


@pytest.mark.parametrize("mode", ["ssgd", "localsgd"])
def test_a_resumed_script_has_the_state_that_it_kept(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Stopped in the middle of an epoch; the moving average, the counters and the evaluations are saved."""
    flags = ("--mode", mode, "--num-workers", "2", "--seed", "3")
    whole = kept(launcher, tmp_path / "whole", *flags, arguments=("plateau=evaluate",))
    folder = tmp_path / "stopped"
    folder.mkdir()
    done = run_script(launcher, folder, *flags, arguments=("plateau=evaluate", "stop=12"), script=SCRIPT)
    assert result_of(done, folder)["stopped_early"]
    resumed = warm_paceline(launcher, "run", "--resume", "run", folder=folder)
    assert resumed.code == 0, resumed.err
    first, second = (
        json.loads((tmp_path / name / "run" / "result.json").read_text()) for name in ("whole", "stopped")
    )
    assert second["state_sha256"] == first["state_sha256"]
    assert _kept_line(resumed.err) == whole


@pytest.mark.soak
def test_ctrl_c_in_the_middle_of_an_epoch_changes_nothing(launcher: LocalLauncher, tmp_path: Path) -> None:
    flags = ("--num-workers", "2", "--seed", "3")
    whole = kept(launcher, tmp_path / "whole", *flags)
    held = tmp_path / "held"
    run_dir = tmp_path / "stopped" / "run"
    run_dir.parent.mkdir()
    with running_script(run_dir, SCRIPT, f"hold={held}", flags=flags, participants=2) as run:
        run.until((tmp_path / "held.reached").exists, "the step in which the workers wait")
        run.send(signal.SIGINT)
        held.touch()
        assert run.end().code == 130
    resumed = warm_paceline(launcher, "run", "--resume", str(run_dir), folder=tmp_path)
    assert resumed.code == 0, resumed.err
    assert _kept_line(resumed.err) == whole
    first, second = (
        json.loads((folder / "result.json").read_text())["state_sha256"]
        for folder in (tmp_path / "whole" / "run", run_dir)
    )
    assert first == second


def test_workers_share_an_evaluation_and_agree_on_values(launcher: LocalLauncher, tmp_path: Path) -> None:
    done = warm_paceline(launcher, "run", "--num-workers", "3", str(SCRIPT), "mean=1", folder=tmp_path)
    assert done.code == 0, done.err
    assert "rank 1.0 of [0, 1, 2]" in done.err
    assert "rows 31" in done.err


def test_an_evaluation_does_not_depend_on_who_shares_it(launcher: LocalLauncher, tmp_path: Path) -> None:
    """In an elastic run every worker evaluates all batches."""
    fixed = kept(launcher, tmp_path / "fixed", "--num-workers", "2", "--seed", "3")
    elastic = ("--mode", "ssgd", "--elastic", "--num-workers", "1", "--shards", "2", "--seed", "3")
    assert kept(launcher, tmp_path / "elastic", *elastic) == fixed


def test_a_skipped_batch_is_a_share_like_others(launcher: LocalLauncher, tmp_path: Path) -> None:
    done = run_script(launcher, tmp_path, "--num-workers", "2", arguments=("skip=3",), script=SCRIPT)
    assert result_of(done, tmp_path)["steps"] == 24


@pytest.mark.parametrize(
    ("arguments", "flags", "code"),
    [
        (("unsaved=1",), ("--num-workers", "2"), "E138"),
        ((), ("--mode", "asgd"), "E134"),
        (("mean=1",), ("--mode", "fedavg", "--num-workers", "2"), "E126"),
        (("mean=1",), ("--elastic", "--num-workers", "2", "--shards", "2"), "E126"),
        (("plateau=rank",), ("--num-workers", "2"), "E126"),
        (("plateau=evaluate",), ("--elastic", "--num-workers", "2", "--shards", "2"), "E126"),
        ((), ("--mode", "localsgd", "--elastic", "--num-workers", "2", "--shards", "2"), "E134"),
        (("clamp=1",), ("--elastic", "--num-workers", "2", "--shards", "2"), "E134"),
        (("outside=1",), ("--elastic", "--num-workers", "2", "--shards", "2"), "E134"),
    ],
)
def test_values_and_state_that_workers_would_not_share_are_refused(
    arguments: tuple[str, ...], flags: tuple[str, ...], code: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, *flags, arguments=arguments, script=SCRIPT)
    assert done.code == 3
    assert code in codes_of(done)
