"""Resolving any config gives a plan or a ConfigError, never another exception."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.environment import Facts, World
from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.catalog import AGGREGATES, MODE_ALIASES, MODES, TASKS
from paceline.plan.codec import dumps, loads
from paceline.plan.explain import explain
from paceline.plan.resolve import resolve
from paceline.sync.fault_rules import Attack, ByzantineRule, StragglerRule

_numbers = st.floats() | st.sampled_from([0.0, -1.0, 0.1, 1.0])
_integers = st.integers(-2, 12) | st.integers()
_names = st.text(max_size=12) | st.sampled_from(["mine:Thing", "other:Thing", ":", "a:b:c"])
_options = st.dictionaries(
    st.text(max_size=5), st.booleans() | st.integers() | st.text(max_size=5), max_size=3
)

_any_rule = st.builds(
    StragglerRule,
    worker=st.none() | _integers,
    factor=_numbers,
    delay_s=_numbers,
    probability=_numbers,
    first_step=_integers,
    end_step=st.none() | _integers,
)

_any_attack = st.builds(
    ByzantineRule,
    attack=st.sampled_from(Attack),
    worker=st.none() | _integers,
    scale=st.none() | _numbers,
    probability=_numbers,
    first_step=_integers,
    end_step=st.none() | _integers,
)

FACTS = st.builds(
    Facts,
    cuda_devices=st.integers(0, 4),
    cpu_count=st.integers(1, 8),
    modules=st.sampled_from([frozenset[str](), frozenset({"mine"})]),
    world=st.none() | st.builds(World, size=st.integers(1, 4), local_size=st.integers(1, 4)),
)


def _one_of(key: str) -> st.SearchStrategy[str]:
    return st.sampled_from(KEYS[key].choices) | st.text(max_size=5)


CONFIGS = st.builds(
    TrainConfig,
    name=st.none() | _names,
    task=st.none() | st.sampled_from(list(TASKS)) | _names,
    task_options=st.none() | _options,
    mode=st.none() | st.sampled_from([*MODES, *MODE_ALIASES]) | _names,
    num_workers=st.none() | _integers,
    steps=st.none() | _integers,
    epochs=st.none() | _numbers,
    evaluate_every=st.none() | st.just("epoch") | _integers,
    early_stop_patience=st.none() | _integers,
    early_stop_metric=st.none() | _names,
    scale_lr=st.none() | _one_of("scale_lr"),
    batch_size=st.none() | _integers | st.lists(_integers, max_size=4).map(tuple),
    seed=st.none() | _integers,
    dtype=st.none() | _one_of("dtype"),
    device=st.none() | _one_of("device"),
    optimizer=st.none() | _one_of("optimizer"),
    lr=st.none() | _numbers,
    lr_schedule=st.none() | _one_of("lr_schedule"),
    lr_warmup=st.none() | _integers,
    weight_decay=st.none() | _numbers,
    clip_norm=st.none() | _numbers,
    compress=st.none()
    | st.sampled_from(["int8", "topk:0.5", "dgc", "powersgd:3", "sign:1", "topk:"])
    | _names,
    error_feedback=st.none() | st.booleans(),
    compress_warmup=st.none() | _integers,
    staleness=st.none() | st.just("inf") | _integers,
    sync_every=st.none() | _integers,
    post_local_after=st.none() | _integers,
    average_optimizer_state=st.none() | st.booleans(),
    sync_batchnorm=st.none() | st.booleans(),
    gossip=st.none() | _one_of("gossip"),
    topology=st.none() | _one_of("topology"),
    straggler=st.none() | st.lists(_any_rule, max_size=2).map(tuple),
    byzantine=st.none() | st.lists(_any_attack, max_size=2).map(tuple),
    aggregate=st.none() | st.sampled_from(list(AGGREGATES)) | _names,
    byzantine_tolerance=st.none() | _integers,
    pace=st.none() | _numbers,
    transport=st.none() | _one_of("transport"),
    launcher=st.none() | _one_of("launcher"),
    address=st.none() | st.sampled_from(["local", "auto", "127.0.0.1:6379", "ray://h:10001"]) | _names,
    placement=st.none() | _one_of("placement"),
    restarts=st.none() | _integers,
    threads_per_worker=st.none() | _integers,
    timeout=st.none() | _numbers,
    checkpoint_every=st.none() | _integers,
    keep_checkpoints=st.none() | _integers,
    checkpoint_store=st.none() | st.just("s3://some-bucket/a/b") | _names,
    events=st.none() | _one_of("events"),
    run_dir=st.none() | st.text(max_size=5),
)


@settings(max_examples=500, deadline=None)
@given(config=CONFIGS, facts=FACTS)
def test_a_config_is_resolved_or_refused(config: TrainConfig, facts: Facts) -> None:
    with contextlib.suppress(ConfigError):
        plan = resolve(config, facts, count=lambda _: 97)
        assert loads(dumps(plan)) == plan
        assert all(line.text for line in explain(plan, cpu_count=facts.cpu_count))


@settings(max_examples=200, deadline=None)
@given(config=CONFIGS, facts=FACTS)
def test_the_same_config_gives_the_same_answer(config: TrainConfig, facts: Facts) -> None:
    def answer() -> str:
        try:
            return dumps(resolve(config, facts, count=lambda _: 97))
        except ConfigError as error:
            return repr(error.problems)

    assert answer() == answer()
