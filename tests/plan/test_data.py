"""`--data` reaches the task, and is refused where it would have no effect."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.catalog import TASKS, data_of
from paceline.plan.explain import explain
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve


def planned(**options: object) -> Plan:
    return resolve(TrainConfig(**options), Facts(modules=frozenset({"mine"})))  # type: ignore[arg-type]  # its names


def test_data_becomes_the_option_of_the_task() -> None:
    assert planned(task="cifar10", data="/images").task_options == {"data": "/images"}
    assert planned(task="charlm", data="a.txt", task_options={"context": 8}).task_options == {
        "context": 8,
        "file": "a.txt",
    }
    assert planned(task="mine:Task", data="x").task_options == {"data": "x"}


def test_a_plan_states_where_its_data_is_whichever_setting_gave_it() -> None:
    assert data_of(planned(task="cifar10", data="synthetic")) == "synthetic"
    assert data_of(planned(task="cifar10", task_options={"data": "here"})) == "here"
    assert data_of(planned(task="cifar10")) is None


def test_a_plan_on_synthetic_data_warns_of_it(wording: Wording) -> None:
    for data in ("synthetic", "/images"):
        lines = explain(planned(task="cifar10", data=data))
        wording("\n".join(f"{line.topic}: {line.text}" for line in lines))


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "xor", "data": "here"},
        {"data": "here"},
        {"task": "cifar10", "data": "a", "task_options": {"data": "b"}},
        {"task": "charlm", "data": "a", "task_options": {"file": "b"}},
    ],
    ids=str,
)
def test_data_that_would_mean_nothing_is_refused(settings: dict[str, object], wording: Wording) -> None:
    with wording.raises(ConfigError) as caught:
        planned(**settings)
    (only,) = caught.value.problems
    assert only.hint


def test_every_task_that_is_listed_with_data_exists() -> None:
    from paceline.plan.catalog import DATA_OPTIONS

    assert set(DATA_OPTIONS) <= set(TASKS)


def test_a_cache_is_for_data_elsewhere_and_for_no_other() -> None:
    cache = {"data_cache": "/scratch", "data_cache_mb": 50}
    far = planned(task="charlm", data="s3://bucket/text", **cache)
    assert far.task_options == {"file": "s3://bucket/text", **cache}
    assert planned(task="charlm", data="text", **cache).task_options == {"file": "text"}
    assert planned(task="xor", **cache).task_options == {}
    plan = planned(task="charlm", task_options={"file": "s3://bucket/text"}, **cache)
    assert plan.task_options == far.task_options


@pytest.mark.parametrize(
    "option", [{"data": "s3://key:hush@b/x"}, {"task_options": {"file": "s3://key:hush@b/x"}}]
)
def test_an_address_with_a_password_never_gets_into_a_plan(
    option: dict[str, object], wording: Wording
) -> None:
    with wording.raises(ConfigError) as caught:
        planned(task="charlm", **option)
    (only,) = caught.value.problems
    assert "hush" not in only.what + only.hint


def test_a_plan_explains_streamed_data_and_another_order(wording: Wording) -> None:
    lines = explain(planned(task="charlm", data="s3://bucket/text", shuffle_block=500))
    wording("\n".join(f"{line.topic}: {line.text}" for line in lines))
