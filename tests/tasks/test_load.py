"""A user's own task is loaded, and every mistake in it is reported."""

from contextlib import chdir
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError, Problem
from paceline.plan.plan import Option
from paceline.tasks.load import load_class, load_task

OWN = "tests.fixtures.tasks"


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


def test_a_missing_module_or_class_says_what_to_write() -> None:
    for name in ("no_such_module:Task", f"{OWN}:NoSuchTask"):
        found = problem(name)
        assert found.what.startswith(f"task {name} cannot be loaded: ")
        assert "--task module:Class" in found.hint


def test_a_module_that_fails_to_import_something_says_so(tmp_path: Path) -> None:
    (tmp_path / "needs_more.py").write_text("import a_package_nobody_has\n")
    with chdir(tmp_path):
        assert "a_package_nobody_has" in problem("needs_more:Task").what


def test_missing_methods_are_all_named_at_once() -> None:
    found = problem(f"{OWN}:ForgetfulTask")
    assert found.what == f"task {OWN}:ForgetfulTask has no loss, metrics"
    assert "five methods" in found.hint


def test_an_option_the_task_does_not_know_is_named() -> None:
    found = problem("xor", hiden=64)
    assert "hiden" in found.what
    assert "--task-option" in found.hint


def test_what_is_no_class_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_class(f"{OWN}:NOT_A_CLASS", what="task")
    assert caught.value.problems[0].what == f"{OWN}:NOT_A_CLASS is a int, not a class"


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
def test_whatever_a_users_file_raises_is_told_with_its_line(
    text: str, kind: str, line: int, tmp_path: Path
) -> None:
    name = f"task_raising_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    with chdir(tmp_path):
        found = problem(f"{name}:Task")
    assert kind in found.what
    assert f"{name}.py:{line}" in found.hint
    assert found.code == "E107"
