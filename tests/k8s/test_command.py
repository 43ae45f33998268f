"""The command of a job holds exactly the settings that differ from defaults, as `paceline` reads them."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.k8s.rendered import objects, settings

from paceline.cli.main import run
from paceline.config.environment import Facts
from paceline.config.key import Key
from paceline.config.keys import KEYS
from paceline.config.load import load
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, ExitCode
from paceline.k8s.spec.command import flag_argv, plan_from, plan_of, read_flags, train_command
from paceline.plan.codec import to_json
from paceline.training.session import Session

RAY = {"launcher": "ray", "address": "auto"}


def test_a_default_is_not_a_flag() -> None:
    config = settings(**RAY, task="xor", mode="ssp", staleness="3", num_workers="2", steps="200", seed="0")
    assert train_command(config, Facts()) == (
        *("paceline", "train", "--launcher", "ray", "--address", "auto", "--mode", "ssp"),
    )


def test_rules_options_and_switches_become_flags() -> None:
    config = settings(**RAY, mode="localsgd", average_optimizer_state="yes", pace="10ms", batch_size="8,16")
    words = train_command(config, Facts())
    assert "--average-optimizer-state" in words
    assert words[words.index("--pace") + 1] == "0.01s"
    assert words[words.index("--batch-size") + 1] == "8,16"


SAID = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["ssgd", "asgd", "ssp", "localsgd", "fedavg", "ps", "diloco"]),
        "num_workers": st.integers(1, 6).map(str),
        "steps": st.integers(1, 500).map(str),
        "epochs": st.sampled_from(["0.5", "3"]),
        "seed": st.integers(0, 3).map(str),
        "staleness": st.sampled_from(["0", "3", "inf"]),
        "sync_every": st.integers(1, 9).map(str),
        "lr": st.sampled_from(["0.1", "1e-3"]),
        "optimizer": st.sampled_from(["sgd", "adamw"]),
        "error_feedback": st.sampled_from(["yes", "no"]),
        "compress": st.sampled_from(["int8", "topk:0.01"]),
        "straggler": st.sampled_from(["worker=0,factor=3", "p=0.05,factor=10,from=5"]),
        "byzantine": st.just("worker=0,attack=scale,scale=-5"),
        "task_options": st.sampled_from(["hidden=64", "hidden=8,noise=0.25"]),
        "timeout": st.sampled_from(["60s", "2m", "1500ms"]),
        "evaluate_every": st.sampled_from(["5", "epoch"]),
    },
)


@given(said=SAID)
def test_the_command_reads_back_as_the_same_plan(said: dict[str, str]) -> None:
    config: TrainConfig = settings(**RAY, **said)
    try:
        plan = plan_of(config, Facts())
    except ConfigError:
        return  # `train` would refuse it too
    written, problems = read_flags(train_command(config, Facts())[2:])
    assert not problems
    assert plan_from(written) == plan


def test_the_entrypoint_of_a_manifest_is_read_by_paceline_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,), _ = objects("job")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:6] == ["paceline", "train", "--launcher", "ray", "--address", "auto"]
    assert run(["plan", *words[2:], "--json"], Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)["data"]["plan"]
    expected = to_json(plan_of(settings(**RAY, name="demo", mode="localsgd", steps="20"), Facts()))
    assert answer == expected
    assert (answer["launcher"], answer["mode"], answer["steps"]) == ("ray", "localsgd", 20)


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_every_setting_can_be_given_in_a_command(key: Key) -> None:
    value = getattr(settings(**{key.name: key.example}), key.name)
    written, problems = read_flags(flag_argv(key.name, value))
    assert not problems
    assert getattr(load(flags=written).config, key.name) == value


def test_where_results_go_is_never_left_out() -> None:
    for key in ("run_dir", "save_dir"):
        words = train_command(settings(**RAY, **{key: "/results"}), Facts())
        assert words[-2:] == (KEYS[key].flag, "/results")
