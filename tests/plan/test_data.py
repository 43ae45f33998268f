"""Does `--data` reach the task that is trained, and is it refused where it would mean nothing?"""

import pytest

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.catalog import TASKS, data_of
from paceline.plan.explain import explain
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve


def planned(**said: object) -> Plan:
    return resolve(TrainConfig(**said), Facts(modules=frozenset({"mine"})))  # type: ignore[arg-type]  # its names


def test_data_becomes_the_option_by_which_the_task_knows_it() -> None:
    assert planned(task="cifar10", data="/images").task_options == {"data": "/images"}
    assert planned(task="charlm", data="a.txt", task_options={"context": 8}).task_options == {
        "context": 8,
        "file": "a.txt",
    }
    assert planned(task="mine:Task", data="x").task_options == {"data": "x"}


def test_a_plan_says_where_its_data_is_however_that_was_said() -> None:
    assert data_of(planned(task="cifar10", data="synthetic")) == "synthetic"
    assert data_of(planned(task="cifar10", task_options={"data": "here"})) == "here"
    assert data_of(planned(task="cifar10")) is None


def test_a_plan_on_synthetic_data_warns_of_it() -> None:
    texts = [line.text for line in explain(planned(task="cifar10", data="synthetic"))]
    assert any("says nothing about the real data set" in text for text in texts)
    assert not any("real data set" in line.text for line in explain(planned(task="cifar10", data="/images")))


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"task": "xor", "data": "here"}, "data is here, but task xor makes its own"),
        ({"data": "here"}, "task xor makes its own"),
        ({"task": "cifar10", "data": "a", "task_options": {"data": "b"}}, "the data is said twice"),
        ({"task": "charlm", "data": "a", "task_options": {"file": "b"}}, "by the task's option file"),
    ],
)
def test_data_that_would_mean_nothing_is_refused(said: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(**said)
    (only,) = caught.value.problems
    assert what in only.what
    assert only.hint


def test_every_task_that_is_said_to_have_data_exists() -> None:
    from paceline.plan.catalog import DATA_OPTIONS

    assert set(DATA_OPTIONS) <= set(TASKS)


def test_a_cache_is_for_data_elsewhere_and_for_no_other() -> None:
    cache = {"data_cache": "/scratch", "data_cache_mb": 50}
    far = planned(task="charlm", data="s3://bucket/text", **cache)
    assert far.task_options == {"file": "s3://bucket/text", **cache}
    assert planned(task="charlm", data="text", **cache).task_options == {"file": "text"}
    assert planned(task="xor", **cache).task_options == {}
    said = planned(task="charlm", task_options={"file": "s3://bucket/text"}, **cache)
    assert said.task_options == far.task_options


@pytest.mark.parametrize(
    "option", [{"data": "s3://key:hush@b/x"}, {"task_options": {"file": "s3://key:hush@b/x"}}]
)
def test_an_address_with_a_password_never_gets_into_a_plan(option: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(task="charlm", **option)
    (only,) = caught.value.problems
    assert "a password or a token" in only.what
    assert "hush" not in only.what + only.hint


def test_a_plan_says_what_streamed_data_and_another_order_mean() -> None:
    texts = [
        line.text for line in explain(planned(task="charlm", data="s3://bucket/text", shuffle_block=500))
    ]
    assert any("each machine needs the way to it" in text for text in texts)
    assert any("eight stretches of 500 only" in text for text in texts)
