"""EPOCHS, BATCH_SIZE and NUM_WORKERS are defaults behind the flags of a benchmark."""

import pytest

from paceline.cli.benchmark import number_setting, with_benchmark_variables
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError


@pytest.fixture
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EPOCHS": "3", "BATCH_SIZE": "128", "NUM_WORKERS": "4"}.items():
        monkeypatch.setenv(name, value)


def keys(entries: list[RawSetting]) -> dict[str, object]:
    return {entry.key: entry.raw for entry in entries}


@pytest.mark.usefixtures("_variables")
def test_an_environment_variable_applies_where_no_flag_overrides_it() -> None:
    flags = [RawSetting(key="batch_size", raw="64", where="--batch-size")]
    assert keys(with_benchmark_variables(flags)) == {"batch_size": "64", "epochs": "3", "num_workers": "4"}
    assert keys(with_benchmark_variables([], ["num_workers"])) == {"batch_size": "128", "epochs": "3"}


@pytest.mark.usefixtures("_variables")
def test_explicit_steps_leave_out_the_default_epochs() -> None:
    raw_settings = with_benchmark_variables([RawSetting(key="steps", raw="10", where="--steps")])
    assert keys(raw_settings) == {"steps": "10", "batch_size": "128", "num_workers": "4"}


def test_a_number_is_the_flag_s_or_the_variable_s_or_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHS", raising=False)
    assert number_setting("epochs", None, 5) == 5
    monkeypatch.setenv("EPOCHS", "2")
    assert number_setting("epochs", None, 5) == 2
    assert number_setting("epochs", 9, 5) == 9
    monkeypatch.setenv("EPOCHS", "many")
    with pytest.raises(ConfigError) as caught:
        number_setting("epochs", None, 5)
    (problem,) = caught.value.problems
    assert problem.where == "EPOCHS"
    assert "'many'" in problem.what
