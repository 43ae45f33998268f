"""What does the user say about checkpoints, and what is made of it?"""

import pytest

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.explain import explain
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve
from paceline.plan.urls import split_store
from paceline.training.resume import plan_in_store

FACTS = Facts(cpu_count=2, cuda_devices=0)


def plan_of(**said: object) -> Plan:
    return resolve(TrainConfig(**said), FACTS)  # type: ignore[arg-type]  # the names are TrainConfig's own


def test_an_elastic_run_saves_now_and_then_without_being_told() -> None:
    assert plan_of(elastic=True).checkpoint_every == 100
    assert plan_of(elastic=True, checkpoint_every=0).checkpoint_every == 0
    assert plan_of().checkpoint_every == 0


def test_three_checkpoints_stay_unless_more_or_fewer_are_asked_for() -> None:
    assert plan_of().keep_checkpoints == 3
    assert plan_of(keep_checkpoints=1).keep_checkpoints == 1
    with pytest.raises(ConfigError, match="keep_checkpoints is 0"):
        plan_of(keep_checkpoints=0)


@pytest.mark.parametrize(
    "store",
    [
        "s3://AKIAIOSFODNN7EXAMPLE:hunter/2+x@bucket/runs",
        "s3://:hunter/2+x@bucket",
        "https://me:hunter/2+x@host/bucket",
        "key:hunter/2+x@bucket/runs",
        "s3://bucket/runs?X-Amz-Signature=hunter/2+x",
        "s3://bucket/runs?whatever=hunter/2+x",
    ],
)
def test_a_password_in_a_store_is_refused_and_not_repeated(store: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(checkpoint_store=store)
    with pytest.raises(ConfigError) as refused_too:
        plan_in_store(store)
    for error in (refused.value, refused_too.value):
        told = f"{error}{error.hint}{error.problems}{error.told()}"
        assert "hunter" not in told
        assert "AKIA" not in told


def test_the_plan_says_where_copies_go() -> None:
    plan = plan_of(checkpoint_store="s3://bucket/a/b", checkpoint_every=10)
    said = " ".join(line.text for line in explain(plan, cpu_count=2))
    assert "every 10 steps, of which the newest 3 stay, with a copy in s3://bucket/a/b" in said


@pytest.mark.parametrize("store", ["bucket/prefix", "s3://", "s3://UPPER/x", "gs://bucket/x", "s3://a"])
def test_what_is_no_place_in_an_object_store_is_refused(store: str) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_store is .*s3://BUCKET/PREFIX"):
        plan_of(checkpoint_store=store)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://bucket", ("bucket", "")),
        ("s3://bucket/", ("bucket", "")),
        ("s3://my.bucket-1/a/b/", ("my.bucket-1", "a/b")),
    ],
)
def test_a_store_is_a_bucket_and_a_prefix(text: str, place: tuple[str, str]) -> None:
    assert split_store(text) == place
