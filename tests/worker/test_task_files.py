"""Files that a task leaves arrive in the run folder, in every kind of run, and no others."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real
from tests.fixtures.tasks.closes import made_up
from tests.fixtures.wording import Wording

from paceline.core.errors import TrainingError
from paceline.datasets.sp500 import prepare
from paceline.launchers.local import LocalLauncher
from paceline.laws.tasks import TinyTask
from paceline.plan.plan import Launcher, Option, Transport
from paceline.worker.participant import write_task_files


class Leaving(TinyTask):
    def __init__(self, name: str) -> None:
        super().__init__(seed=0)
        self._name = name

    def files(self, metrics: Mapping[str, float]) -> dict[str, bytes]:
        return {self._name: repr(dict(metrics)).encode()}


def test_a_task_leaves_what_it_makes_of_its_metrics(tmp_path: Path) -> None:
    write_task_files(Leaving("seen.txt"), {"f1": 0.5}, tmp_path)
    assert (tmp_path / "seen.txt").read_text() == "{'f1': 0.5}"
    write_task_files(TinyTask(seed=0), {"f1": 0.5}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["seen.txt"]


@pytest.mark.parametrize(
    "name", ["../seen.txt", "a/b", "", "..", "plan.json", "events.jsonl", "events.000000.jsonl"]
)
def test_it_writes_nowhere_else(tmp_path: Path, name: str, wording: Wording) -> None:
    with wording.raises(TrainingError):
        write_task_files(Leaving(name), {}, tmp_path)


def test_a_missing_folder_is_reported(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(TrainingError):
        write_task_files(Leaving("seen.txt"), {}, tmp_path / "none")


@pytest.mark.parametrize(
    ("mode", "launcher_kind"),
    [("ssgd", Launcher.LOCAL), ("asgd", Launcher.LOCAL), ("ssgd", Launcher.VIRTUAL)],
)
def test_the_matrix_is_left_with_workers_a_server_and_in_virtual_time(
    mode: str, launcher_kind: Launcher, launcher: LocalLauncher, tmp_path: Path
) -> None:
    prepare(made_up(200), tmp_path / "s.npz", window=5, test_fraction=0.2)
    options: dict[str, Option] = {"npz_path": str(tmp_path / "s.npz"), "hidden": 4, "save_cm": True}
    is_virtual = launcher_kind is Launcher.VIRTUAL
    other: dict[str, object] = {"transport": Transport.NONE, "pace_s": 0.01} if is_virtual else {}
    plan = small_plan(mode, task="sp500", steps=2, task_options=options, launcher=launcher_kind, **other)
    run = real(plan, tmp_path / "run", launcher)
    assert (run.run_dir / "confusion_matrix.json").exists()
    assert (run.run_dir / "confusion_matrix.svg").exists()
