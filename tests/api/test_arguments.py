"""Keyword arguments equal flags, and every mistake is reported before anything starts."""

from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.wording import Wording

import paceline
from paceline.api.arguments import import_name, parse_kwargs
from paceline.config.load import load
from paceline.core.errors import ConfigError
from paceline.tasks.xor import XorTask


def test_values_of_python_are_settings() -> None:
    flags = parse_kwargs(
        "train",
        {
            "steps": np.int64(5),
            "lr": np.float32(0.5),
            "batch_size": (4, 8),
            "straggler": ["worker=1,factor=3", {"worker": 0, "delay": "5ms"}],
            "task_options": {"hidden": 64, "deep": True},
            "elastic": False,
            "staleness": float("inf"),
            "run_dir": Path("runs/x"),
            "pace": "10ms",
            "seed": None,
        },
    )
    loaded = load(flags=flags)
    assert loaded.problems == ()
    config = loaded.config
    assert (config.steps, config.lr, config.batch_size, config.elastic) == (5, 0.5, (4, 8), False)
    assert (config.staleness, config.run_dir, config.pace, config.seed) == ("inf", "runs/x", 0.01, None)
    assert config.task_options == {"hidden": 64, "deep": True}
    assert [rule.worker for rule in config.straggler or ()] == [1, 0]


def test_every_problem_is_in_one_error_with_its_place_and_its_hint(wording: Wording) -> None:
    with pytest.raises(paceline.ConfigError) as caught:
        paceline.train("xor", workers=0, stepz=5, lr=-1, mode="ssgdd", progress=False)  # type: ignore[call-arg]
    places = {problem.where for problem in caught.value.problems}
    assert places == {"train(num_workers=…)", "train(stepz=…)", "train(lr=…)", "train(mode=…)"}
    notes = "\n".join(caught.value.__notes__)
    assert "error[E101]: train(stepz=…): " in notes
    wording(notes)


def test_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_STEPS", "none")
    with pytest.raises(ConfigError) as caught:
        paceline.train("xor", lr=-1, progress=False)
    assert [problem.where for problem in caught.value.problems] == ["train(lr=…)"]


def test_a_value_that_no_setting_can_be_is_named(wording: Wording) -> None:
    with wording.raises(ConfigError):
        paceline.train("xor", steps=object(), progress=False)  # type: ignore[arg-type]  # that is the mistake


def test_both_names_for_the_workers_at_once_are_too_many(wording: Wording) -> None:
    with wording.raises(ConfigError):
        paceline.train("xor", workers=2, progress=False, num_workers=3)  # type: ignore[call-arg]  # that is the mistake


def test_a_class_of_a_module_is_named_by_it() -> None:
    assert import_name(XorTask, "task") == "paceline.tasks.xor:XorTask"
    assert import_name("my:Own", "task") == "my:Own"


def test_a_class_that_workers_cannot_import_is_refused_with_the_folder_it_belongs_in(
    wording: Wording,
) -> None:
    class Mine: ...

    with pytest.raises(ConfigError) as caught:
        paceline.train(Mine, progress=False)
    (problem,) = caught.value.problems
    wording(problem.what)
    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"  # as in a notebook
    with pytest.raises(ConfigError) as caught:
        paceline.train(Mine, progress=False)
    (problem,) = caught.value.problems
    wording(problem.what)
    assert "%%writefile my_task.py" in problem.hint
    with wording.raises(ConfigError):
        import_name(lambda: None, "task")
