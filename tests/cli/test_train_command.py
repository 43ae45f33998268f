"""Does `paceline train` start early, choose its folder well, and say how it went?"""

import json
from pathlib import Path

import pytest

from paceline.checkpoints.catalog import Checkpoint
from paceline.cli.main import run
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ExitCode, TrainingError
from paceline.plan.codec import Json, dumps
from paceline.plan.plan import Plan
from paceline.training.progress import Progress, Watcher
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]


class FakeTrainer:
    """Writes plan.json like the real one, and remembers what it was asked."""

    def __init__(self, extra: dict[str, Json] | None = None, error: Exception | None = None) -> None:
        self.extra = extra or {}
        self.error = error
        self.started = 0
        self.closed = 0
        self.counted = 0
        self.runs: list[tuple[Plan, Path]] = []

    def start(self) -> "FakeTrainer":
        self.started += 1
        return self

    def train(self, plan: Plan, run_dir: Path, watcher: Watcher) -> dict[str, Json]:
        self.runs.append((plan, run_dir))
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "plan.json").write_text(dumps(plan))
        for step in range(0, plan.steps + 1, 10):
            watcher.progress(
                Progress(
                    step=step,
                    total_steps=plan.steps,
                    loss=0.5,
                    samples_per_s=3100.0,
                    workers_alive=2,
                    num_workers=2,
                    elapsed_s=step / 100,
                    steps_per_s=100.0,
                )
            )
        watcher.note("all done")
        if self.error is not None:
            raise self.error
        return {
            "loss": float("nan"),
            "metrics": {"test_accuracy": 0.918},
            "samples_per_s": 3100.0,
            "wall_s": 2.0,
            "bytes": {"out": 64_000, "in": 64_000},
            "phases_s": {"forward": 1.0, "backward": 2.0, "wait": 1.0, "delay": 0.0},
            "staleness": {"mean": 1.5, "max": 4, "histogram": {}},
            "stopped_early": False,
            **self.extra,
        }

    def resume(self, plan: Plan, run_dir: Path, checkpoint: Checkpoint, watcher: Watcher) -> dict[str, Json]:
        return self.train(plan, run_dir, watcher)

    def count_samples(self, config: TrainConfig) -> int:
        self.counted += 1
        return 640

    def close(self) -> None:
        self.closed += 1


def train(folder: Path, trainer: FakeTrainer, *args: str) -> int:
    return run(["train", *args], Session(folder=folder, start_trainer=trainer.start))


def test_a_run_ends_with_a_summary_on_stdout_and_lines_on_stderr(tmp_path: Path, capsys: Captured) -> None:
    trainer = FakeTrainer()
    assert train(tmp_path, trainer, "--steps", "100", "--mode", "ssp") == ExitCode.OK
    out, err = capsys.readouterr()
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["test_accuracy"] == "0.918"
    assert rows["throughput"] == "3.1k samples/s"
    assert rows["travelled"] == "64 kB out, 64 kB in"
    assert rows["staleness"] == "mean 1.50, max 4 versions"
    assert "forward 25%, backward 50%, wait 25%" in out
    assert "delay" not in out
    assert str(tmp_path / "runs" / "xor-ssp") in out
    assert rows["next"].startswith("paceline ")
    lines = err.splitlines()
    assert lines[0].startswith("training xor with 2 workers, mode ssp, in ")
    assert len(lines) == 1 + 10 + 1
    assert lines[2].endswith("step 20/100 20% loss 0.5 2/2 workers 3.1k samples/s eta 0.8s")
    assert (trainer.started, trainer.closed) == (1, 1)


@pytest.mark.parametrize(
    ("adapted", "said"),
    [
        (None, "never: nothing else would have been worth it"),
        (
            {"count": 1, "way": "batch", "shares": "40,24"},
            "once; at the end batch, samples of a step by worker: 40,24",
        ),
        (
            {"count": 3, "way": "local-steps", "shares": "11,5"},
            "3 times; at the end local-steps, local steps of a round by worker: 11,5",
        ),
    ],
)
def test_the_summary_of_adaptive_says_what_it_ended_with(
    adapted: "Json", said: str, tmp_path: Path, capsys: Captured
) -> None:
    trainer = FakeTrainer(extra={"adapted": adapted})
    assert train(tmp_path, trainer, "--mode", "adaptive", "-q") == ExitCode.OK
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["adapted"] == said


def test_the_result_as_json_is_one_object_without_talk(tmp_path: Path, capsys: Captured) -> None:
    assert train(tmp_path, FakeTrainer(), "--json", "--steps", "10") == ExitCode.OK
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["schema"] == "paceline.train/1"
    assert answer["data"]["run_dir"] == str(tmp_path / "runs" / "xor-ssgd")
    assert answer["data"]["result"]["loss"] is None  # not a number
    assert err == ""


def test_a_new_run_never_goes_into_the_folder_of_another(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    for _ in range(3):
        assert train(tmp_path, trainer, "-q") == ExitCode.OK
    assert [run_dir.name for _, run_dir in trainer.runs] == ["xor-ssgd", "xor-ssgd-2", "xor-ssgd-3"]


def test_a_named_folder_is_used_once(tmp_path: Path, capsys: Captured) -> None:
    trainer = FakeTrainer()
    assert train(tmp_path, trainer, "-q", "--run-dir", "here") == ExitCode.OK
    assert train(tmp_path, trainer, "-q", "--run-dir", "here", "--steps", "0") == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    assert f"error[E106]: --run-dir: run_dir {tmp_path / 'here'} already holds a run" in err
    assert "error[E102]: --steps: steps is 0" in err
    assert len(trainer.runs) == 1


def test_a_folder_that_is_a_file_or_impossible_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("")
    assert train(tmp_path, FakeTrainer(), "--run-dir", "file") == ExitCode.BAD_CONFIG
    assert "is a file" in capsys.readouterr().err
    assert train(tmp_path, FakeTrainer(), "--run-dir", "x" * 5000) == ExitCode.BAD_CONFIG
    assert "cannot be used" in capsys.readouterr().err


def test_what_was_warmed_up_is_closed_when_the_config_is_bad(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    assert train(tmp_path, trainer, "--steps", "0") == ExitCode.BAD_CONFIG
    assert (trainer.started, trainer.closed, trainer.runs) == (1, 1, [])


def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: Captured) -> None:
    trainer = FakeTrainer()
    assert train(tmp_path, trainer, "-n", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["schema"] == "paceline.plan/1"
    assert trainer.started == 0
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_says_why_and_closes(tmp_path: Path, capsys: Captured) -> None:
    trainer = FakeTrainer(error=TrainingError("worker 1 died", "look into its log"))
    assert train(tmp_path, trainer, "-q") == ExitCode.TRAINING_FAILED
    assert capsys.readouterr().err.splitlines() == [
        "error[E400]: worker 1 died",
        "  why:  a participant failed, and the run could not go on without it",
        "  fix:  look into its log",
        "  more: paceline explain E400",
    ]
    assert trainer.closed == 1


@pytest.mark.parametrize(
    ("extra", "code"), [({"stopped_by": "SIGTERM"}, 143), ({"stopped_by": "SIGINT"}, 130), ({}, 130)]
)
def test_a_run_that_was_stopped_in_order_still_tells_scripts(
    tmp_path: Path, capsys: Captured, extra: dict[str, Json], code: int
) -> None:
    assert train(tmp_path, FakeTrainer({"stopped_early": True, **extra}), "-q") == code
    assert capsys.readouterr().out.startswith("stopped ")


def test_epochs_are_counted_by_the_trainer_that_trains(tmp_path: Path, capsys: Captured) -> None:
    trainer = FakeTrainer()
    assert (
        train(tmp_path, trainer, "--epochs", "3", "--scale-lr", "linear", "--lr-warmup", "5") == ExitCode.OK
    )
    plan, _ = trainer.runs[0]
    assert (plan.steps, plan.epochs, plan.num_samples) == (30, 3.0, 640)
    assert (trainer.started, trainer.closed, trainer.counted) == (1, 1, 1)
    said = "times 2 (linear rule: 64 samples per update instead of 32), reached over the first 5 steps"
    assert said in capsys.readouterr().err


def test_a_plan_in_epochs_asks_for_the_count_and_starts_nothing_else(
    tmp_path: Path, capsys: Captured
) -> None:
    trainer = FakeTrainer()
    session = Session(folder=tmp_path, start_trainer=trainer.start)
    assert run(["plan", "--epochs", "2", "--evaluate-every", "epoch", "--json"], session) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["data"]["plan"]["steps"] == 20
    assert (trainer.started, trainer.closed, trainer.counted, trainer.runs) == (1, 1, 1, [])


def test_an_early_stop_is_no_interruption(tmp_path: Path, capsys: Captured) -> None:
    why = "early stop: valid_loss was no better than 0.3 after step 9 in 2 evaluations"
    best: dict[str, Json] = {"step": 9, "metrics": {"valid_loss": 0.3}}
    trainer = FakeTrainer({"stopped_early": True, "stopped_by": why, "best": best})
    assert train(tmp_path, trainer) == ExitCode.OK
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["stopped"] == why
    assert rows["best"] == "weights  of step 9, kept"
    assert rows["next"].startswith("paceline replay")
