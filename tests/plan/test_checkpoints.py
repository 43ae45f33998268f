"""Checkpoint settings, and what a plan makes of them."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.explain import explain
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve
from paceline.plan.urls import split_store
from paceline.training.run_sessions import open_run_store

FACTS = Facts(cpu_count=2, cuda_devices=0)


def plan_of(**options: object) -> Plan:
    return resolve(TrainConfig(**options), FACTS)  # type: ignore[arg-type]  # the names are TrainConfig's own


def test_an_elastic_run_saves_periodically_by_default() -> None:
    assert plan_of(elastic=True).checkpoint_every == 100
    assert plan_of(elastic=True, checkpoint_every=0).checkpoint_every == 0
    assert plan_of().checkpoint_every == 0


def test_three_checkpoints_stay_unless_more_or_fewer_are_requested(wording: Wording) -> None:
    assert plan_of().keep_checkpoints == 3
    assert plan_of(keep_checkpoints=1).keep_checkpoints == 1
    with wording.raises(ConfigError):
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
        "file://me:hunter/2+x@host/runs",
    ],
)
def test_a_password_in_a_store_is_refused_and_not_repeated(store: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(checkpoint_store=store)
    with pytest.raises(ConfigError) as refused_too:
        open_run_store(store)
    for error in (refused.value, refused_too.value):
        message = f"{error}{error.hint}{error.problems}{error.to_dicts()}"
        assert "hunter" not in message
        assert "AKIA" not in message


def test_the_plan_states_where_copies_go(wording: Wording) -> None:
    plan = plan_of(checkpoint_store="s3://bucket/a/b", checkpoint_every=10)
    (line,) = (line.text for line in explain(plan, cpu_count=2) if "s3://bucket/a/b" in line.text)
    wording(line)


@pytest.mark.parametrize("store", ["bucket/prefix", "s3://", "s3://UPPER/x", "gs://bucket/x", "s3://a"])
def test_what_is_no_place_in_an_object_store_is_refused(store: str, wording: Wording) -> None:
    with wording.raises(ConfigError):
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


def test_a_store_is_a_bucket_or_an_absolute_folder(wording: Wording) -> None:
    assert plan_of(checkpoint_store="file:///mnt/volume/runs/first").checkpoint_store is not None
    for store in ("file://runs/first", "file:///", "runs/first"):
        with wording.raises(ConfigError):
            plan_of(checkpoint_store=store)
