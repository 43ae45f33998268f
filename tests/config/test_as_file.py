"""A config that was written to a file is the same when it is read."""

from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.load import config_to_yaml, load
from paceline.config.train_config import Option, TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError

HARD = {
    "task_options": "hidden=64",
    "batch_size": "8,16",
    "straggler": "worker=1,p=0.5,factor=3,delay=5ms,from=10,to=20",
    "byzantine": "worker=1,attack=scale,scale=-5",
    "staleness": "inf",
    "events": "off",
    "evaluate_every": "epoch",
    "lr": "1e-5",
    "name": "007",
}


def read(*flags: RawSetting) -> TrainConfig:
    loaded = load(flags=flags)
    assert not loaded.problems
    return loaded.config


def again(config: TrainConfig, folder: Path) -> TrainConfig:
    path = folder / "best.yaml"
    path.write_text(config_to_yaml(config))
    loaded = load(file=path)
    assert not loaded.problems
    return loaded.config


@pytest.mark.parametrize("name", [name for name in KEYS if name != "run_dir"])
def test_every_setting_comes_back(name: str, tmp_path: Path) -> None:
    raw = HARD.get(name, "tensorboard=/logs" if name == "export" else KEYS[name].example)
    config = read(RawSetting(key=name, raw=raw, where="x"))
    assert getattr(config, name) is not None
    assert getattr(again(config, tmp_path), name) == getattr(config, name)


def test_options_keep_their_types(tmp_path: Path) -> None:
    options: dict[str, Option] = {
        "hidden": 64,
        "rate": 1e-6,
        "word": "relu",
        "digits": "64",
        "on": True,
        "odd": "yes: no",
    }
    config = TrainConfig(task="xor", task_options=options)
    assert again(config, tmp_path).task_options == options


def test_only_explicit_settings_are_written_and_the_output_folder_is_not() -> None:
    assert config_to_yaml(TrainConfig(lr=0.5, run_dir="runs/a", straggler=(), task_options={})) == "lr: 0.5\n"
    assert KEYS["pace"].kind is Kind.DURATION


def test_a_recorded_trace_is_refused(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "trace.csv").write_text("worker,step,factor\n0,1,3\n")
    raw = f"trace={tmp_path / 'trace.csv'}"
    config = read(RawSetting(key="straggler", raw=raw, where="--straggler"))
    with wording.raises(ConfigError):
        config_to_yaml(config)
