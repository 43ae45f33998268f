"""A user's own task is loaded, and every mistake in it is reported."""

from contextlib import chdir
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, Problem
from paceline.plan.plan import Option
from paceline.tasks.load import load_class, load_task

OWN = "tests.fixtures.tasks.user_tasks"


def problem(name: str, **options: Option) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load_task(name, seed=0, options=options)
    (only,) = caught.value.problems
    return only


def test_a_task_is_found_in_the_folder_one_stands_in(tmp_path: Path) -> None:
    (tmp_path / "task_of_a_user.py").write_text(
        "from paceline.laws.tasks import TinyTask\n\nclass Mine(TinyTask):\n    lr = 0.7\n"
    )
    with chdir(tmp_path):
        task = load_task("task_of_a_user:Mine", seed=4, options={"num_samples": 11})
    assert len(task.samples()) == 11
    assert vars(type(task))["lr"] == 0.7


def test_a_missing_module_or_class_is_reported_with_what_to_write() -> None:
    for name in ("no_such_module:Task", f"{OWN}:NoSuchTask"):
        error = problem(name)
        assert name in error.what
        assert "--task module:Class" in error.hint


def test_a_module_that_fails_to_import_something_is_reported(tmp_path: Path) -> None:
    (tmp_path / "needs_more.py").write_text("import a_missing_package\n")
    with chdir(tmp_path):
        assert "a_missing_package" in problem("needs_more:Task").what


def test_missing_methods_are_all_named_at_once(wording: Wording) -> None:
    error = problem(f"{OWN}:ForgetfulTask")
    assert f"{OWN}:ForgetfulTask " in error.what
    assert error.what.endswith(" loss, metrics")
    wording(error.hint)


def test_an_unknown_option_of_the_task_is_named() -> None:
    error = problem("xor", hiden=64)
    assert "hiden" in error.what
    assert "--task-option" in error.hint


def test_what_is_no_class_is_refused(wording: Wording) -> None:
    with pytest.raises(ConfigError) as caught:
        load_class(f"{OWN}:NOT_A_CLASS", noun="task")
    wording(caught.value.problems[0].what)


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("x = 1\nclass Task(:\n", "SyntaxError", 2),
        ("x = 1\n\nraise KeyError('no such data')\n", "KeyError", 3),
        ("import sys\nsys.exit(0)\n", "sys.exit(0)", 2),
        ("class Task:\n    def __init__(self, *, seed):\n        self.x = 1 / 0\n", "ZeroDivisionError", 3),
        ("class Task:\n    def __init__(self, *, seed):\n        int([])\n", "TypeError", 3),
    ],
    ids=lambda value: str(value).split("\n")[0],
)
def test_any_exception_of_a_users_file_is_reported_with_its_line(
    text: str, kind: str, line: int, tmp_path: Path
) -> None:
    name = f"task_raising_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    with chdir(tmp_path):
        error = problem(f"{name}:Task")
    assert kind in error.what
    assert f"{name}.py:{line}" in error.hint
    assert error.code == "E107"
