"""Export options are parsed, and what cannot work is reported before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts, installed
from paceline.config.load import load, read_export
from paceline.config.train_config import ExportKind, ExportTarget, TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, NotReadyError
from paceline.export.metrics import final_values, parameters_of
from paceline.export.processes import require_packages
from paceline.plan.check import check
from paceline.plan.codec import dumps, loads
from paceline.plan.plan import StrategyOptions


def target(text: str) -> ExportTarget:
    (only,) = read_export(text, where="--export", folder=Path())
    return only


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        target(text)
    (only,) = caught.value.problems
    assert only.where == "--export"
    assert only.hint
    return f"{only.what} | {only.hint}"


def test_a_target_is_a_name_and_perhaps_a_place() -> None:
    assert target("tensorboard") == ExportTarget(kind=ExportKind.TENSORBOARD)
    assert target("TensorBoard=logs/tb").where == "logs/tb"
    assert target("mlflow=http://127.0.0.1:5000").where == "http://127.0.0.1:5000"
    assert target("wandb=Offline").where == "offline"


def test_a_place_in_a_file_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("export:\n  - tensorboard=tb\n  - mlflow=store\n  - wandb\n")
    config = load(file=tmp_path / "train.yaml").config
    assert [t.where for t in config.export or ()] == [str(tmp_path / "tb"), str(tmp_path / "store"), None]


def test_flags_variables_and_files_are_equivalent(tmp_path: Path) -> None:
    requested = (ExportTarget(kind=ExportKind.TENSORBOARD), ExportTarget(kind=ExportKind.WANDB))
    flags = [RawSetting(key="export", raw=name, where="--export") for name in ("tensorboard", "wandb")]
    assert load(flags=flags).config.export == requested
    assert load(variables={"export": "tensorboard; wandb"}).config.export == requested
    (tmp_path / "train.toml").write_text('export = ["tensorboard", "wandb"]\n')
    assert load(file=tmp_path / "train.toml").config.export == requested


def test_an_invalid_target_is_reported_with_a_suggestion(wording: Wording) -> None:
    assert " tensorboard?" in problem("tensorbord")
    wording(problem("wandb=on"))
    wording(problem("mlflow="))


@pytest.mark.parametrize("address", ["http://me:hush@host:5000", "https://hush@host"])
def test_a_secret_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    error = problem(f"mlflow={address}")
    assert "MLFLOW_TRACKING_PASSWORD" in error
    assert "hush" not in error


def test_a_missing_package_is_a_problem_with_the_command_that_installs_it() -> None:
    config = TrainConfig(export=(target("tensorboard"), target("mlflow=sqlite:///runs.db"), target("wandb")))
    hints = [p.hint for p in check(config, Facts(packages=frozenset({"mlflow"})))]
    assert hints == [
        "pip install 'paceline[tensorboard]'",
        "pip install mlflow",
        "pip install 'paceline[wandb]'",
    ]
    assert check(config, Facts(packages=frozenset({"mlflow", "sqlalchemy", "tensorboard", "wandb"}))) == []


def test_a_folder_without_code_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "missing_package").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed({"missing_package", "json"}) == {"json"}


def test_a_resumed_run_whose_package_is_gone_is_refused_too(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr("sys.path", [])
    with wording.raises(NotReadyError):
        require_packages([target("wandb")])


def test_what_cannot_be_is_refused(wording: Wording) -> None:
    everything = Facts(packages=frozenset({"wandb"}))
    twice = TrainConfig(export=(target("wandb"), target("wandb=online")))
    (problem,) = check(twice, everything)
    wording(problem.what)
    off = TrainConfig(export=(target("wandb"),), events="off")
    (problem,) = check(off, everything)
    wording(problem.what)


def test_a_plan_keeps_its_targets() -> None:
    plan = small_plan("ssgd", exports=(target("tensorboard=tb"), target("wandb")))
    assert loads(dumps(plan)) == plan


def test_the_plan_is_exported_by_dotted_names_without_what_is_not_set() -> None:
    plan = replace(
        small_plan("localsgd"), strategy=StrategyOptions(sync_every=8), task_options={"hidden": 64}
    )
    reported = parameters_of(plan)
    assert reported["mode"] == "localsgd"
    assert reported["strategy.sync_every"] == 8
    assert reported["task_options.hidden"] == 64
    assert reported["batch_sizes"] == "[4, 4]"
    assert not {"compress", "exports", "stragglers"} & set(reported)


def test_final_numbers_are_those_of_the_result() -> None:
    values = final_values(
        {
            "metrics": {"accuracy": 0.5},
            "loss": None,
            "wall_s": 2,
            "bytes": {"out": 3, "in": 4},
            "staleness": {"mean": 1.5, "max": 2, "max_gap": 1, "histogram": {"1": 4}, "mean_age_s": 0.1},
            "stopped_early": False,
            "run": "x",
        }
    )
    assert values == {
        "final/accuracy": 0.5,
        "final/wall_s": 2.0,
        "final/bytes.out": 3.0,
        "final/bytes.in": 4.0,
        "final/staleness.mean": 1.5,
        "final/staleness.max": 2.0,
        "final/staleness.max_gap": 1.0,
    }
