"""`paceline train`: early start, choice of the run folder, output and exit codes."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode, TrainingError
from paceline.launchers.local import Message, RunOutcome, ScriptStart, Supervisor
from paceline.plan.codec import Json
from paceline.plan.plan import Option, Plan
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]


class FakeLauncher:
    """Reports progress and an outcome without starting a process, and records its calls."""

    def __init__(self, report: dict[str, Json] | None = None, error: Exception | None = None) -> None:
        self.report = report or {}
        self.error = error
        self.started = 0
        self.closed = 0
        self.counted = 0
        self.runs: list[tuple[Plan, Path]] = []

    def start(self) -> AbstractContextManager["FakeLauncher"]:
        self.started += 1
        return closing(self)

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        self.runs.append((plan, run_dir))
        for step in range(0, plan.steps + 1, 10):
            on_message({"ev": "progress", "steps": [step] * plan.num_workers, "loss": 0.5, "alive": 2})
        on_message({"ev": "note", "text": "all done"})
        if self.error is not None:
            raise self.error
        report: Message = {"steps_s": 1.5, "metrics": {"test_accuracy": 0.918}, **self.report}
        return RunOutcome(reports={"worker-0": report})

    def count_samples(self, task: str, *, options: Mapping[str, Option], seed: int, dtype: str) -> int:
        self.counted += 1
        return 640

    def probe_script(self, start: ScriptStart) -> Message:
        raise AssertionError("no script is run here")

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


def train(folder: Path, launcher: FakeLauncher, *args: str) -> int:
    return run(["train", *args], Session(folder=folder, start_launcher=launcher.start))


def test_a_run_ends_with_a_summary_on_stdout_and_lines_on_stderr(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    launcher = FakeLauncher()
    assert train(tmp_path, launcher, "--steps", "100", "--mode", "ssp") == ExitCode.OK
    out, err = capsys.readouterr()
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["test_accuracy"] == "0.918"
    assert str(tmp_path / "runs" / "xor-ssp") in out
    assert rows["next"].startswith("paceline ")
    lines = err.splitlines()
    wording(lines[0])
    assert len(lines) == 1 + 10 + 1
    assert " step 20/100 20% loss 0.5 2/2 workers " in lines[2]
    assert (launcher.started, launcher.closed) == (1, 1)


def test_the_result_as_json_is_one_object_without_talk(tmp_path: Path, capsys: Captured) -> None:
    launcher = FakeLauncher({"metrics": {"test_accuracy": float("nan")}})
    assert train(tmp_path, launcher, "--json", "--steps", "10") == ExitCode.OK
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["schema"] == "paceline.train/1"
    assert answer["data"]["run_dir"] == str(tmp_path / "runs" / "xor-ssgd")
    assert answer["data"]["result"]["metrics"] == {"test_accuracy": None}  # not a number
    assert err == ""


def test_a_new_run_never_goes_into_the_folder_of_another(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    for _ in range(3):
        assert train(tmp_path, launcher, "-q") == ExitCode.OK
    assert [run_dir.name for _, run_dir in launcher.runs] == ["xor-ssgd", "xor-ssgd-2", "xor-ssgd-3"]


def test_a_named_folder_is_used_once(tmp_path: Path, capsys: Captured) -> None:
    launcher = FakeLauncher()
    assert train(tmp_path, launcher, "-q", "--run-dir", "here") == ExitCode.OK
    assert train(tmp_path, launcher, "-q", "--run-dir", "here", "--steps", "0") == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    assert f"error[E106]: --run-dir: run_dir {tmp_path / 'here'} " in err
    assert "error[E102]: --steps: " in err
    assert len(launcher.runs) == 1


def test_a_folder_that_is_a_file_or_impossible_is_refused(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    (tmp_path / "file").write_text("")
    assert train(tmp_path, FakeLauncher(), "--run-dir", "file") == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)
    assert train(tmp_path, FakeLauncher(), "--run-dir", "x" * 5000) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err, hide=["x" * 5000])


def test_what_was_warmed_up_is_closed_when_the_config_is_bad(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    assert train(tmp_path, launcher, "--steps", "0") == ExitCode.BAD_CONFIG
    assert (launcher.started, launcher.closed, launcher.runs) == (1, 1, [])


def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: Captured) -> None:
    launcher = FakeLauncher()
    assert train(tmp_path, launcher, "-n", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["schema"] == "paceline.plan/1"
    assert launcher.started == 0
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_prints_the_cause_and_closes(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    launcher = FakeLauncher(error=TrainingError("worker 1 died", "look into its log"))
    assert train(tmp_path, launcher, "-q") == ExitCode.TRAINING_FAILED
    err = capsys.readouterr().err
    assert err.startswith("error[E400]: worker 1 died\n")
    wording(err)
    assert launcher.closed == 1


@pytest.mark.parametrize(
    ("extra", "code"), [({"stopped_by": "SIGTERM"}, 143), ({"stopped_by": "SIGINT"}, 130), ({}, 130)]
)
def test_a_run_that_was_stopped_cleanly_still_reports_to_scripts(
    tmp_path: Path, capsys: Captured, extra: dict[str, Json], code: int
) -> None:
    assert train(tmp_path, FakeLauncher({"stopped": True, **extra}), "-q") == code
    assert capsys.readouterr().out.startswith("stopped ")


def test_epochs_are_counted_by_the_launcher_that_trains(tmp_path: Path, capsys: Captured) -> None:
    launcher = FakeLauncher()
    assert (
        train(tmp_path, launcher, "--epochs", "3", "--scale-lr", "linear", "--lr-warmup", "5") == ExitCode.OK
    )
    plan, _ = launcher.runs[0]
    assert (plan.steps, plan.epochs, plan.num_samples) == (30, 3.0, 640)
    assert (launcher.started, launcher.closed, launcher.counted) == (1, 1, 1)
    message = "times 2 (linear rule: 64 samples per update instead of 32), reached over the first 5 steps"
    assert message in capsys.readouterr().err


def test_a_plan_in_epochs_counts_the_samples_and_starts_nothing_else(
    tmp_path: Path, capsys: Captured
) -> None:
    launcher = FakeLauncher()
    session = Session(folder=tmp_path, start_launcher=launcher.start)
    assert run(["plan", "--epochs", "2", "--evaluate-every", "epoch", "--json"], session) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["data"]["plan"]["steps"] == 20
    assert (launcher.started, launcher.closed, launcher.counted, launcher.runs) == (1, 1, 1, [])


def test_an_early_stop_is_no_interruption(tmp_path: Path, capsys: Captured) -> None:
    why = "early stop: valid_loss was no better than 0.3 after step 9 in 2 evaluations"
    best = json.dumps({"step": 9, "metrics": {"valid_loss": 0.3}})
    launcher = FakeLauncher({"stopped": True, "stopped_by": why, "best": best})
    assert train(tmp_path, launcher) == ExitCode.OK
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["stopped"] == why
    assert "step 9" in rows["best"]
    assert rows["next"].startswith("paceline replay")
