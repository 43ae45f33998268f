"""Compressed and robust means of an elastic run have the bits of the plain mode, with any workers."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.runs.generations import ElasticRun, Fault, any_faults
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import virtual_hash

from paceline.events.lineage import lineage_of
from paceline.plan.plan import Codec, Compression, Elastic, OnSlow, OptimizerChoice, Plan, StrategyOptions
from paceline.plan.schedule import is_whole
from paceline.sync.fault_rules import Attack, ByzantineRule, StragglerRule

INT8, SIGN, FP16 = (
    Compression(codec=Codec.INT8),
    Compression(codec=Codec.SIGN),
    Compression(codec=Codec.FP16, error_feedback=False),
)
RANDOM_INT8 = Compression(codec=Codec.INT8, error_feedback=False)
TOPK = Compression(codec=Codec.TOPK, amount=0.1)
DGC = Compression(codec=Codec.DGC, amount=0.1, warmup=8)
POWERSGD = Compression(codec=Codec.POWERSGD, amount=1.0)
MOMENTUM = OptimizerChoice(name="momentum", lr=0.05)
LOCAL = StrategyOptions(sync_every=4)
OUTER = StrategyOptions(sync_every=4, outer_lr=0.7, outer_momentum=0.9)
MEDIAN = StrategyOptions(aggregate="median", byzantine_tolerance=1)
BATCH_NORM = {"batch_norm": True}


def elastic_plan(mode: str, changes: dict[str, object], *, workers: int = 3, shards: int = 4) -> Plan:
    plan = small_plan(mode, num_workers=shards, **{"steps": 14, "task_options": BATCH_NORM, **changes})
    return replace(plan, elastic=Elastic(workers=workers, min_workers=1, max_workers=workers))


def plain_hash(plan: Plan) -> str:
    return virtual_hash(replace(plan, elastic=None))


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        *(("ssgd", {"compress": codec}) for codec in (INT8, SIGN, FP16, RANDOM_INT8, TOPK, DGC, POWERSGD)),
        ("ssgd", {"compress": TOPK, "batch_sizes": (2, 3, 6, 4), "optimizer": MOMENTUM, "clip_norm": 0.1}),
        ("localsgd", {"compress": INT8, "strategy": LOCAL, "optimizer": MOMENTUM}),
        ("localsgd", {"compress": POWERSGD, "strategy": replace(LOCAL, average_optimizer_state=True)}),
        ("diloco", {"compress": TOPK, "strategy": OUTER, "batch_sizes": (2, 3, 6, 4)}),
        ("fedavg", {"compress": SIGN, "strategy": replace(LOCAL, clients_per_round=0.5)}),
        ("ssgd", {"strategy": MEDIAN}),
        ("ssgd", {"strategy": replace(MEDIAN, aggregate="trimmed-mean"), "optimizer": MOMENTUM}),
        ("ssgd", {"strategy": replace(MEDIAN, aggregate="krum", byzantine_tolerance=0)}),
    ],
    ids=str,
)
def test_any_number_of_workers_ends_with_the_bits_of_one_worker_for_each_shard(
    mode: str, changes: dict[str, object], workers: int, tmp_path: Path
) -> None:
    plan = elastic_plan(mode, changes, workers=workers)
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    assert run.hashes == [plain_hash(plan)] * workers
    if plan.compress is not None and workers > 1:
        assert any(row.bytes_saved for rows in history.steps.values() for row in rows)


FAULTY = given(
    case=st.sampled_from(
        [
            ("ssgd", {"compress": TOPK}),
            ("ssgd", {"compress": INT8, "optimizer": MOMENTUM}),
            ("ssgd", {"compress": DGC}),
            ("ssgd", {"compress": POWERSGD}),
            ("localsgd", {"compress": SIGN, "strategy": LOCAL, "optimizer": MOMENTUM}),
            ("diloco", {"compress": INT8, "strategy": OUTER}),
            ("ssgd", {"strategy": MEDIAN}),
        ]
    ),
    faults=any_faults(at_most=2, looks=160),
)


@settings(max_examples=6)
@FAULTY
def test_whichever_worker_dies_or_freezes_anywhere_no_error_memory_is_lost(
    case: tuple[str, dict[str, object]], faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_same_bits(case, faults, tmp_path_factory.mktemp("run"))


@pytest.mark.soak
@settings(max_examples=80)
@FAULTY
def test_the_same_with_many_faults(
    case: tuple[str, dict[str, object]], faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_same_bits(case, faults, tmp_path_factory.mktemp("run"))


def assert_same_bits(case: tuple[str, dict[str, object]], faults: list[Fault], folder: Path) -> None:
    plan = elastic_plan(*case)
    run = ElasticRun(plan, folder, tuple(faults))
    history = run.run()
    assert run.hashes
    assert set(run.hashes) == {plain_hash(plan)}
    lineage = lineage_of(history.plain, steps=14, is_whole=lambda result: is_whole(plan, result))
    assert lineage.problems == ()


def test_shards_dealt_by_speed_keep_their_error_memories(tmp_path: Path) -> None:
    slow = StragglerRule(worker=1, factor=6.0)
    changes = {"compress": TOPK, "steps": 60, "pace_s": 0.004, "stragglers": (slow,), "task_options": {}}
    plan = elastic_plan("ssgd", changes, workers=2, shards=6)
    assert plan.elastic is not None
    plan = replace(plan, elastic=replace(plan.elastic, on_slow=OnSlow.REBALANCE))
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    assert any(event.kind == "shards_dealt" for event in history.plain)
    assert set(run.hashes) == {plain_hash(replace(plan, stragglers=()))}


def test_a_byzantine_shard_stays_byzantine_when_another_worker_takes_it_over(tmp_path: Path) -> None:
    rules = (ByzantineRule(worker=3, attack=Attack.GARBAGE, scale=100.0),)
    plan = elastic_plan("ssgd", {"strategy": MEDIAN, "byzantine": rules})
    run = ElasticRun(plan, tmp_path, (Fault(worker=2, look=60),))
    run.run()
    assert set(run.hashes) == {plain_hash(plan)}
    assert plain_hash(plan) != plain_hash(replace(plan, byzantine=()))
