"""Elastic FedAvg: rounds are committed whole or not at all, with the bits of plain fedavg."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.fixtures.runs.generations import ElasticRun, Fault, any_faults
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import virtual_hash

from paceline.events.lineage import lineage_of
from paceline.plan.plan import Elastic, OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.plan.schedule import commits_in, draws_of
from paceline.worker.replay.schedule import replay_elastic

HALF = StrategyOptions(sync_every=3, clients_per_round=0.5)
MOMENTUM = OptimizerChoice(name="momentum", lr=0.05)
MANY_LOOKS = 160  # about as often as a worker of these runs looks at its clock


def elastic_plan(changes: dict[str, object] | None = None, *, workers: int = 3) -> Plan:
    """Each client has a last round that is shorter."""
    known: dict[str, object] = {
        "strategy": HALF,
        "steps": 10,
        "optimizer": MOMENTUM,
        "task_options": {"batch_norm": True},
        **(changes or {}),
    }
    plan = small_plan("fedavg", num_workers=4, **known)
    return replace(plan, elastic=Elastic(workers=workers, min_workers=1, max_workers=workers))


def rounds_in(plan: Plan) -> int:
    draws = draws_of(plan)
    while draws.current():
        draws.finish()
    return draws.number


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_sizes": (1, 2, 5, 3), "task_options": {}},
        {"strategy": StrategyOptions(sync_every=4)},
        {"strategy": StrategyOptions(sync_every=2, clients_per_round=0.25)},
    ],
    ids=["half", "unequal", "all", "one at a time"],
)
def test_any_number_of_workers_ends_with_the_bits_of_one_worker_for_each_client(
    changes: dict[str, object], workers: int, tmp_path: Path
) -> None:
    plan = elastic_plan(changes, workers=workers)
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    assert run.hashes == [virtual_hash(replace(plan, elastic=None))] * workers
    positions = {row.position for rows in history.steps.values() for row in rows}
    assert positions == set(range(plan.total_gradients))
    assert replay_elastic(plan, history, run.hashes[0]).is_equal


OVER = pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
ANY = given(faults=any_faults(at_most=2, looks=MANY_LOOKS))


@OVER
@settings(max_examples=3)
@ANY
def test_whichever_worker_dies_or_freezes_anywhere_the_bits_are_the_same(
    transport: Transport, faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_same_bits(faults, tmp_path_factory.mktemp("run"), transport)


@pytest.mark.soak
@settings(max_examples=40)
@ANY
@OVER
def test_the_same_with_many_faults(
    transport: Transport, faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_same_bits(faults, tmp_path_factory.mktemp("run"), transport)


def assert_same_bits(faults: list[Fault], folder: Path, transport: Transport) -> None:
    plan = elastic_plan()
    run = ElasticRun(replace(plan, transport=transport), folder, tuple(faults))
    history = run.run()
    assert run.hashes
    assert set(run.hashes) == {virtual_hash(replace(plan, elastic=None))}
    rounds = rounds_in(plan)
    lineage = lineage_of(history.plain, steps=rounds)
    assert lineage.problems == ()
    assert sum(stretch.end - stretch.first for stretch in lineage.stretches) == rounds


def test_a_stop_request_ends_the_run_at_the_end_of_a_round(tmp_path: Path) -> None:
    plan = elastic_plan({"steps": 40}, workers=2)
    run = ElasticRun(plan, tmp_path, stop_at=5)
    history = run.run()
    made = sum(map(len, history.steps.values()))
    assert 0 < made < plan.total_gradients
    assert len(set(run.hashes)) == 1
    verdict = replay_elastic(plan, history, run.hashes[0])
    assert verdict.is_equal, verdict.parted


def test_a_period_of_steps_is_a_number_of_rounds() -> None:
    plan = elastic_plan()
    assert commits_in(plan, 0) == 0
    assert commits_in(plan, 60) == 40  # a round is 3 steps of 2 of 4 clients
    assert commits_in(plan, 1) == 1
    assert commits_in(replace(plan, mode="ssgd"), 60) == 60
