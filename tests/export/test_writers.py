"""The vendors' own readers find in their files what the run's own folder says."""

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.fixtures.processes.command import paceline, training
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import Watching
from tests.fixtures.servers.wandb_file import read_wandb
from tests.fixtures.waiting import descendants, until, until_gone

from paceline.config.train_config import ExportKind, ExportTarget
from paceline.events.read import History, read_history
from paceline.export.follower import follow
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import Json
from paceline.plan.plan import Plan
from paceline.training.run import load_resumable, train

Series = list[tuple[int, float]]


@dataclass
class Noting(Watching):
    notes: list[str] | None = None

    def note(self, text: str) -> None:
        if self.notes is not None:
            self.notes.append(text)


@dataclass(frozen=True)
class Exported:
    run_dir: Path
    store: Path  # MLflow's
    result: dict[str, Any]  # Any: JSON
    history: History
    notes: list[str]

    def losses(self) -> Series:
        """By step of the run: the mean over both workers."""
        rows: dict[int, list[float]] = {}
        for mine in self.history.steps.values():
            for row in mine:
                rows.setdefault(row.position // 2, []).append(row.loss)
        return [(step, math.fsum(result) / len(result)) for step, result in sorted(rows.items())]


def targets(folder: Path) -> tuple[ExportTarget, ...]:
    return (
        ExportTarget(kind=ExportKind.TENSORBOARD),
        ExportTarget(kind=ExportKind.MLFLOW, where=str(folder / "store")),
        ExportTarget(kind=ExportKind.WANDB, where="offline"),
    )


@pytest.fixture(scope="module")
def live(launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A run with a parameter server that was exported to all three while it trained, stopped and resumed."""
    folder = tmp_path_factory.mktemp("live")
    # So slow that the stop request is received before the end.
    plan = small_plan("asgd", steps=40, pace_s=0.06, exports=targets(folder))
    notes: list[str] = []
    first = train(plan, folder / "first", Noting(launcher, stop_at=15, notes=notes), warm=launcher)
    assert first["stopped_early"]
    outcome, checkpoint = load_resumable(folder / "first")
    watcher = Noting(launcher, notes=notes)
    result = train(outcome, folder / "first", watcher, warm=launcher, resume_from=checkpoint)
    history = read_history(folder / "first" / "events.jsonl")
    return Exported(folder / "first", folder / "store", dict(result), history, notes)


@pytest.fixture
def mlflow_client(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:  # Any: the vendor's
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return lambda store: MlflowClient(store.as_uri())


def tensorboard_reader(folder: Path) -> Any:  # Any: the vendor's
    # Its own way to say that files are read without TensorFlow, which may be installed and takes seconds.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return reader


def tensorboard_series(folder: Path, tag: str) -> Series:
    reader = tensorboard_reader(folder)
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def assert_same(series: Series, requested: Series, *, relative: float = 0.0) -> None:
    assert [step for step, _ in series] == [step for step, _ in requested]
    assert [value for _, value in series] == pytest.approx(
        [value for _, value in requested], rel=relative, abs=0
    )


def test_tensorboard_shows_each_step_once_and_the_final_numbers(live: Exported) -> None:
    folder = live.run_dir / "tensorboard"
    assert_same(tensorboard_series(folder, "train/loss"), live.losses(), relative=1e-6)  # 32 bits
    accuracy = live.result["metrics"]
    for name, value in accuracy.items():
        assert_same(tensorboard_series(folder, f"final/{name}"), [(40, value)], relative=1e-6)
    assert len(tensorboard_series(folder, "staleness/mean")) > 30
    assert max(v for _, v in tensorboard_series(folder, "train/samples_per_s")) > 0


def test_tensorboard_contains_the_plan(live: Exported) -> None:
    from tensorboard.plugins.hparams import metadata

    reader = tensorboard_reader(live.run_dir / "tensorboard")
    about = reader.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    started = metadata.parse_session_start_info_plugin_data(about)
    assert started.hparams["mode"].string_value == "asgd"
    assert started.hparams["num_workers"].number_value == 2


def test_mlflow_holds_one_run_with_the_same_numbers(live: Exported, mlflow_client: Any) -> None:
    client = mlflow_client(live.store)
    experiment = client.get_experiment_by_name("paceline")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params["mode"] == "asgd"
    # A step that was half done when the run stopped is told again, and MLflow keeps both.
    history = client.get_metric_history(run.info.run_id, "train/loss")
    latest = {m.step: m.value for m in history}
    assert_same(sorted(latest.items()), live.losses())
    assert len(history) <= len(latest) + 1
    for name, value in live.result["metrics"].items():
        assert run.data.metrics[f"final/{name}"] == value
    assert run.data.metrics["final/bytes.out"] == live.result["bytes"]["out"]
    assert run.data.metrics["final/staleness.max"] == live.result["staleness"]["max"]


def test_wandb_s_file_holds_the_same_numbers_and_needed_no_account(live: Exported) -> None:
    runs = sorted(live.run_dir.glob("wandb/offline-run-*"))
    assert len(runs) == 2, "one for each session; under one id, so that syncing joins them"
    assert len({run.name.rpartition("-")[2] for run in runs}) == 1


def test_the_destination_is_printed_once_for_each_session(live: Exported) -> None:
    reported = [note.partition(":")[0] for note in live.notes if note.startswith("export ")]
    assert sorted(reported) == sorted(["export mlflow", "export tensorboard", "export wandb"] * 2)
    assert not [note for note in live.notes if "warning" in note]


def test_afterwards_the_numbers_are_the_same(live: Exported, tmp_path: Path, mlflow_client: Any) -> None:
    where = [f"tensorboard={tmp_path / 'tb'}", f"mlflow={tmp_path / 'store'}", "wandb"]
    for run in live.run_dir.glob("wandb/offline-run-*/*.wandb"):
        run.unlink()  # so that one is left to be read
    result = paceline("export", str(live.run_dir), *(w for t in where for w in ("--to", t)), "--json")
    assert result.code == 0, result.err + result.out
    assert [row["to"] for row in result.data()["exports"]] == ["tensorboard", "mlflow", "wandb"]
    losses = live.losses()
    assert_same(tensorboard_series(tmp_path / "tb" / "first", "train/loss"), losses, relative=1e-6)
    client = mlflow_client(tmp_path / "store")
    (run,) = client.search_runs([client.get_experiment_by_name("paceline").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert_same([(m.step, m.value) for m in history], losses)
    seen = read_wandb(live.run_dir)
    assert (seen.name, seen.project, seen.exit_code) == ("first", "paceline", 0)
    assert seen.config["mode"] == "asgd"
    assert_same(seen.series("train/loss"), losses)
    for name, value in live.result["metrics"].items():
        assert seen.summary[f"final/{name}"] == value


def test_a_run_that_begins_and_ends_between_two_looks_is_exported(live: Exported, tmp_path: Path) -> None:
    run_dir = tmp_path / "short"

    def is_over() -> bool:
        if not run_dir.exists():
            shutil.copytree(live.run_dir, run_dir)
        return True

    target = ExportTarget(kind=ExportKind.TENSORBOARD, where=str(tmp_path / "tb"))
    follow(run_dir, target, since=0, is_over=is_over)
    assert_same(tensorboard_series(tmp_path / "tb" / "short", "train/loss"), live.losses(), relative=1e-6)


def test_a_second_export_into_the_same_event_files_is_refused(live: Exported) -> None:
    result = paceline("export", str(live.run_dir), "--to", "tensorboard")
    assert result.code == 5
    assert str(live.run_dir / "tensorboard") in result.err


def test_numbers_appear_during_training_and_no_process_is_left_when_the_command_is_killed(
    tmp_path: Path,
) -> None:
    board = tmp_path / "run" / "tensorboard"

    def is_told() -> bool:
        files = list(board.glob("events.out.tfevents.*"))
        return bool(files) and "train/loss" in tensorboard_reader(board).Tags()["scalars"]

    with training(tmp_path / "run", "--export", "tensorboard") as running:
        until(is_told, "TensorBoard shows something")
        assert running.process.poll() is None, "it still trains"
        processes = running.processes()
        assert any("paceline.export" in line for line in descendants(running.process.pid).values())
        running.send(signal.SIGKILL)
        until_gone(processes)
    assert tensorboard_series(board, "train/loss")
    assert "Traceback" not in (tmp_path / "run" / "logs" / "export-tensorboard.log").read_text()


def failing(folder: Path) -> Plan:
    (folder / "file").write_text("in the way")
    there = ExportTarget(kind=ExportKind.TENSORBOARD, where=str(folder / "file"))
    return replace(small_plan("ssgd"), exports=(there,))


def test_an_export_that_fails_never_fails_the_run(launcher: LocalLauncher, tmp_path: Path) -> None:
    notes: list[str] = []
    result = train(failing(tmp_path), tmp_path / "run", Noting(launcher, notes=notes), warm=launcher)
    assert result["stopped_early"] is False
    (warning,) = notes
    assert warning.startswith("warning: ")
    log = tmp_path / "run" / "logs" / "export-tensorboard.log"
    assert str(log) in warning
    assert "Traceback" in log.read_text()


def test_what_is_no_run_cannot_be_exported(tmp_path: Path) -> None:
    result = paceline("export", str(tmp_path), "--to", "wandb", "--to", "wandb=maybe", "--to", "mlflo")
    assert result.code == 3
    assert result.err.count("error[E") == 2
    result = paceline("export", str(tmp_path / "none"), "--to", "tensorboard")
    assert result.code == 5
    assert "plan.json" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", list(ExportKind))
def test_no_writer_imports_torch_or_tensorflow(live: Exported, tmp_path: Path, name: ExportKind) -> None:
    where = {"tensorboard": "board", "mlflow": "store", "wandb": "offline"}[name]
    shutil.copytree(live.run_dir, tmp_path / "run", ignore=shutil.ignore_patterns("tensorboard", "wandb"))
    probe = f"""
import sys
sys.argv = ["", "run", "{name}={where}", "once"]
from paceline.export.__main__ import main
main()
sys.exit("torch" in sys.modules or "tensorflow" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert json.loads(result.stdout)["points"] > 40


def test_nothing_secret_is_left_in_the_run_folder(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "h" * 40)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hush-token")
    plan = replace(small_plan("ssgd"), exports=targets(tmp_path)[1:])
    notes: list[str] = []
    train(plan, tmp_path / "run", Noting(launcher, notes=notes), warm=launcher)
    messages: list[Json] = [*notes]
    for path in (p for p in tmp_path.rglob("*") if p.is_file()):
        messages.append(path.read_bytes().decode("latin-1"))
    assert not [text for text in messages if "h" * 40 in json.dumps(text) or "hush-token" in json.dumps(text)]
