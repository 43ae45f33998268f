"""Do keyword arguments mean what flags mean, and is every mistake said before anything starts?"""

from pathlib import Path

import numpy as np
import pytest

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


def test_every_problem_is_in_one_error_with_its_place_and_its_hint() -> None:
    with pytest.raises(paceline.ConfigError) as caught:
        paceline.train("xor", workers=0, stepz=5, lr=-1, mode="ssgdd", progress=False)  # type: ignore[call-arg]
    places = {problem.where for problem in caught.value.problems}
    assert places == {"train(num_workers=…)", "train(stepz=…)", "train(lr=…)", "train(mode=…)"}
    notes = "\n".join(caught.value.__notes__)
    assert "error[E101]: train(stepz=…): there is no key stepz\n  fix: did you mean steps?" in notes


def test_the_environment_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_STEPS", "none")
    with pytest.raises(ConfigError) as caught:
        paceline.train("xor", lr=-1, progress=False)
    assert [problem.where for problem in caught.value.problems] == ["train(lr=…)"]


def test_a_value_that_no_setting_can_be_is_named() -> None:
    with pytest.raises(ConfigError, match=r"steps is <object object at .*>, a object"):
        paceline.train("xor", steps=object(), progress=False)  # type: ignore[arg-type]  # that is the mistake


def test_both_names_for_the_workers_at_once_are_too_many() -> None:
    with pytest.raises(ConfigError, match="num_workers is said twice"):
        paceline.train("xor", workers=2, progress=False, num_workers=3)  # type: ignore[call-arg]  # that is the mistake


def test_a_class_of_a_module_is_named_by_it() -> None:
    assert import_name(XorTask, "task") == "paceline.tasks.xor:XorTask"
    assert import_name("my:Own", "task") == "my:Own"


def test_a_class_that_workers_cannot_import_says_where_to_put_it() -> None:
    class Mine: ...

    with pytest.raises(ConfigError) as caught:
        paceline.train(Mine, progress=False)
    (problem,) = caught.value.problems
    assert "Mine is defined inside something else" in problem.what
    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"  # as in a notebook
    with pytest.raises(ConfigError) as caught:
        paceline.train(Mine, progress=False)
    (problem,) = caught.value.problems
    assert "is defined in this notebook or script" in problem.what
    assert "%%writefile my_task.py" in problem.hint
    with pytest.raises(ConfigError, match="which is no class"):
        import_name(lambda: None, "task")  # type: ignore[arg-type]  # that is the mistake
