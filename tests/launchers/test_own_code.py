"""What a user's own code does to its process ends in one error that names it, and leaves nothing behind."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import Watching
from tests.fixtures.waiting import until_gone

from paceline.core.errors import TrainingError
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Option, Plan
from paceline.training.run import train

TASKS = "tests.fixtures.tasks.torch_tasks"


def own(task: str, mode: str = "ssgd", **options: Option) -> Plan:
    return replace(small_plan(mode), task=f"{TASKS}:{task}", task_options=options)


@pytest.mark.parametrize("is_hard", [False, True], ids=["sys.exit", "os._exit"])
def test_a_task_that_ends_its_process_fails_the_run_and_is_named(
    is_hard: bool, launcher: LocalLauncher, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError) as caught:
        train(own("LeavingTask", hard=is_hard), tmp_path / "run", Watching(launcher), warm=launcher)
    expected = "before its work was done" if is_hard else "sys.exit(0) (tests/fixtures/tasks/torch_tasks.py:"
    assert expected in caught.value.what
    assert caught.value.problems[0].code == "E400"


def test_an_elastic_run_replaces_a_worker_whose_task_called_exit(tmp_path: Path) -> None:
    result = paceline(
        *("train", "--task", f"{TASKS}:LeavingTask", "--task-option", f"once={tmp_path / 'once'}"),
        *("--elastic", "--num-workers", "2", "--min-workers", "2", "--steps", "20"),
        *("--run-dir", str(tmp_path / "run")),
    )
    assert result.code == 0, result.err
    assert "sys.exit(0)" in result.err
    started = [
        e.who for e in read_history(tmp_path / "run" / "events.jsonl").plain if e.kind == "worker_started"
    ]
    assert len(started) == 3, "one of the two is replaced"


def test_a_syntax_error_is_reported_with_the_users_line_and_is_not_blamed_on_torch(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text("x = 1\nclass MyTask(:\n")
    result = paceline("train", "--task", "my_task:MyTask", folder=tmp_path)
    assert result.code == 3
    assert "error[E107]" in result.err
    assert "SyntaxError" in result.err
    assert "my_task.py:2" in result.err
    assert "torch" not in result.err


def test_processes_that_a_task_starts_end_with_the_run(launcher: LocalLauncher, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    train(own("ParentTask", pids=str(pids)), tmp_path / "run", Watching(launcher), warm=launcher)
    started = [int(path.name) for path in pids.iterdir()]
    assert len(started) >= 2
    until_gone(started)


def test_a_run_whose_every_loss_is_nan_fails_and_warns_at_once(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    args = ("--task", f"{TASKS}:NanTask", "--steps", "5", "--run-dir", str(tmp_path / "run"))
    result = warm_paceline(launcher, "train", *args, folder=Path.cwd())
    assert result.code == 5
    assert "error[E403]" in result.err
    assert "nan" in result.err
