"""Elastic rounds are committed whole or not at all, with the bits of the plain mode."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.runs.generations import ElasticRun, Fault, any_faults
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import virtual_hash

from paceline.events.lineage import lineage_of
from paceline.events.read import History
from paceline.plan.plan import Elastic, OnSlow, OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.plan.schedule import ROUND_MODES, is_whole
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.schedule import RateSchedule, RateShape

TORCH_ADAM = "tests.fixtures.tasks.user_tasks:TorchAdamTask"
LOCAL = StrategyOptions(sync_every=4)
OUTER = StrategyOptions(sync_every=4, outer_lr=0.7, outer_momentum=0.9)
STREAMING = StrategyOptions(
    sync_every=4, outer_lr=0.7, outer_momentum=0.9, fragments=3, sync_delay=2, mixing=0.5
)
MOMENTUM = OptimizerChoice(name="momentum", lr=0.05)
MANY_LOOKS = 160  # about as often as a worker of these runs looks at its clock


def elastic_plan(mode: str, changes: dict[str, object], *, workers: int = 3, shards: int = 4) -> Plan:
    """Four rounds, of which the last is shorter."""
    known: dict[str, object] = {"strategy": OUTER if mode == "diloco" else LOCAL, "steps": 14, **changes}
    plan = small_plan(mode, num_workers=shards, **known)
    return replace(plan, elastic=Elastic(workers=workers, min_workers=1, max_workers=workers))


def plain_hash(plan: Plan) -> str:
    return virtual_hash(replace(plan, elastic=None))


def steps_committed(plan: Plan, history: History) -> int:
    rows = (row for entry in history.steps.values() for row in entry if row.synced)
    return 1 + max(row.position // plan.num_workers for row in rows)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("localsgd", {}),
        ("localsgd", {"optimizer": MOMENTUM, "task_options": {"batch_norm": True}}),
        ("localsgd", {"strategy": StrategyOptions(sync_every=5, post_local_after=3)}),
        ("localsgd", {"task": TORCH_ADAM, "batch_sizes": (1, 2, 5, 3)}),
        (
            "localsgd",
            {
                "task": TORCH_ADAM,
                "batch_sizes": (1, 2, 5, 3),
                "strategy": StrategyOptions(sync_every=4, average_optimizer_state=True),
            },
        ),
        ("diloco", {"optimizer": OptimizerChoice(name="adamw", lr=0.01, weight_decay=0.1)}),
        (
            "diloco",
            {
                "clip_norm": 0.05,
                "optimizer": MOMENTUM,
                "lr_schedule": RateSchedule(shape=RateShape.COSINE, warmup=3, steps=14),
            },
        ),
        ("diloco", {"strategy": STREAMING, "optimizer": MOMENTUM, "task_options": {"batch_norm": True}}),
        ("diloco", {"strategy": replace(STREAMING, sync_delay=0), "batch_sizes": (1, 2, 5, 3)}),
        ("diloco", {"strategy": replace(STREAMING, fragments=1, sync_delay=3), "optimizer": MOMENTUM}),
        ("diloco", {"strategy": replace(STREAMING, mixing=0.0, sync_delay=1), "steps": 13}),
    ],
)
def test_any_number_of_workers_ends_with_the_bits_of_one_worker_for_each_shard(
    mode: str, changes: dict[str, object], workers: int, tmp_path: Path
) -> None:
    plan = elastic_plan(mode, changes, workers=workers)
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    assert run.hashes == [plain_hash(plan)] * workers
    positions = sorted(row.position for rows in history.steps.values() for row in rows)
    assert set(positions) == set(range(plan.total_gradients))
    # Nothing was interrupted, so each share was done once; but who is first to finish leaves, and then
    # a worker may repeat the last round.
    last = max(result for result in range(plan.steps) if is_whole(plan, result)) * plan.num_workers
    assert [position for position in positions if position < last] == list(range(last))


OVER = pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
ANY = given(
    mode=st.sampled_from(["localsgd", "diloco", "ssgd", "streaming"]),
    faults=any_faults(at_most=2, looks=MANY_LOOKS),
)


@OVER
@settings(max_examples=4)
@ANY
def test_whichever_worker_dies_or_freezes_anywhere_the_bits_are_the_same(
    transport: Transport, mode: str, faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_same_bits(mode, faults, tmp_path_factory.mktemp("run"), transport)


@pytest.mark.soak
@OVER
@settings(max_examples=60)
@ANY
def test_the_same_with_many_faults(
    transport: Transport, mode: str, faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_same_bits(mode, faults, tmp_path_factory.mktemp("run"), transport)


def assert_same_bits(mode: str, faults: list[Fault], folder: Path, transport: Transport) -> None:
    changes: dict[str, object] = {} if mode in ROUND_MODES else {"strategy": StrategyOptions()}
    if mode == "streaming":
        mode, changes = "diloco", {"strategy": STREAMING}
    plan = elastic_plan(mode, {"optimizer": MOMENTUM, "task_options": {"batch_norm": True}, **changes})
    run = ElasticRun(replace(plan, transport=transport), folder, tuple(faults))
    history = run.run()
    assert run.hashes
    assert set(run.hashes) == {plain_hash(plan)}
    lineage = lineage_of(history.plain, steps=14, is_whole=lambda result: is_whole(plan, result))
    assert lineage.problems == ()
    assert sum(stretch.end - stretch.first for stretch in lineage.stretches) == plan.steps


def test_shards_dealt_by_speed_take_what_they_keep_along(tmp_path: Path) -> None:
    slow = StragglerRule(worker=1, factor=6.0)
    changes = {"optimizer": MOMENTUM, "steps": 60, "pace_s": 0.004, "stragglers": (slow,)}
    plan = elastic_plan("localsgd", changes, workers=2, shards=6)
    assert plan.elastic is not None
    plan = replace(plan, elastic=replace(plan.elastic, on_slow=OnSlow.REBALANCE))
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    assert any(event.kind == "shards_dealt" for event in history.plain)
    assert set(run.hashes) == {plain_hash(replace(plan, stragglers=()))}


def test_a_stop_request_ends_the_run_at_the_end_of_a_round(tmp_path: Path) -> None:
    plan = elastic_plan("diloco", {"optimizer": MOMENTUM}, workers=2)
    run = ElasticRun(plan, tmp_path, stop_at=5)
    history = run.run()
    steps = steps_committed(plan, history)
    assert steps == 4  # each of two workers had made 5 gradients in the middle of the first round
    assert set(run.hashes) == {plain_hash(replace(plan, steps=steps))}


def test_a_stop_request_synchronizes_fragments_that_are_in_flight(tmp_path: Path) -> None:
    plan = elastic_plan("diloco", {"optimizer": MOMENTUM, "strategy": STREAMING, "steps": 30}, workers=2)
    run = ElasticRun(plan, tmp_path, stop_at=11)
    history = run.run()
    steps = steps_committed(plan, history)
    assert steps < 30
    assert set(run.hashes) == {plain_hash(replace(plan, steps=steps))}
