"""A plan is the same after it was written and read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.core.errors import PacelineError
from paceline.plan.catalog import OPTIMIZERS
from paceline.plan.codec import dumps, loads, plan_hash
from paceline.plan.plan import (
    Device,
    Dtype,
    EventDetail,
    Launcher,
    OptimizerChoice,
    Plan,
    StrategyOptions,
    Transport,
)
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.schedule import RateSchedule, RateShape

_finite = st.floats(0, 1e6)
_counts = st.integers(1, 1000)

PLANS = st.builds(
    Plan,
    run=st.text(),
    task=st.text(),
    mode=st.text(),
    num_workers=_counts,
    steps=_counts,
    batch_sizes=st.lists(_counts, max_size=4).map(tuple),
    launcher=st.sampled_from(Launcher),
    transport=st.sampled_from(Transport),
    seed=_counts,
    dtype=st.sampled_from(Dtype),
    device=st.sampled_from(Device),
    task_options=st.dictionaries(st.text(), st.booleans() | st.integers() | _finite | st.text(), max_size=3),
    optimizer=st.none()
    | st.builds(OptimizerChoice, name=st.sampled_from(OPTIMIZERS), lr=_finite, weight_decay=_finite),
    lr=st.none() | _finite,
    lr_scale=_finite,
    lr_schedule=st.none()
    | st.builds(RateSchedule, shape=st.sampled_from(RateShape), warmup=_counts, steps=_counts),
    clip_norm=st.none() | _finite,
    strategy=st.builds(
        StrategyOptions,
        staleness=st.none() | _counts,
        sync_every=_counts,
        post_local_after=_counts,
        average_optimizer_state=st.booleans(),
        sync_batchnorm=st.booleans(),
    ),
    stragglers=st.lists(
        st.builds(
            StragglerRule,
            worker=st.none() | _counts,
            factor=_finite,
            delay_s=_finite,
            probability=_finite,
            first_step=_counts,
            end_step=st.none() | _counts,
            steps=st.none() | st.lists(_counts, max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    pace_s=_finite,
    threads_per_worker=_counts,
    timeout_s=_finite,
    checkpoint_every=_counts,
    keep_checkpoints=_counts,
    checkpoint_store=st.none() | st.text(),
    events=st.sampled_from(EventDetail),
)

SMALL = Plan(run="r", task="xor", mode="ssgd", num_workers=1, steps=1, batch_sizes=(1,))


@given(plan=PLANS)
def test_a_plan_reads_back_as_itself_with_the_same_hash(plan: Plan) -> None:
    again = loads(dumps(plan))
    assert again == plan
    assert plan_hash(again) == plan_hash(plan)


def test_two_plans_differ_in_their_hash() -> None:
    other = Plan(run="r", task="xor", mode="ssgd", num_workers=1, steps=2, batch_sizes=(1,))
    assert plan_hash(SMALL) != plan_hash(other)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", dumps(SMALL).replace("plan/1", "plan/9"), '"plan"'])
def test_an_invalid_plan_is_refused_with_the_reason(text: str, wording: Wording) -> None:
    with wording.raises(PacelineError):
        loads(text)


def test_an_unknown_key_is_refused(wording: Wording) -> None:
    raw = json.loads(dumps(SMALL)) | {"colour": "red"}
    with wording.raises(PacelineError):
        loads(json.dumps(raw))


def test_a_plan_from_before_a_strategy_option_existed_has_its_default() -> None:
    raw = json.loads(dumps(SMALL))
    del raw["strategy"]["sync_batchnorm"]
    del raw["hash"]  # of these values; such a file has that of its own
    assert loads(json.dumps(raw)) == SMALL
