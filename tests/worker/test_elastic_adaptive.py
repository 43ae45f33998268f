"""Elastic adaptive workers decide alike, and end with the bits of the policies they chose."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.fixtures.runs.generations import ElasticRun, Fault, any_faults
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import virtual_hash

from paceline.events.lineage import lineage_of, policies_of
from paceline.events.read import History
from paceline.plan.plan import Elastic, OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.sync.adaptive_setting import Allowed, SyncPolicy
from paceline.sync.fault_rules import StragglerRule
from paceline.worker.replay.schedule import replay_elastic

TORCH_ADAM = "tests.fixtures.tasks.user_tasks:TorchAdamTask"
MOMENTUM = OptimizerChoice(name="momentum", lr=0.05)
PASSING = (StragglerRule(probability=0.3, factor=6.0),)
LASTING = (StragglerRule(worker=1, factor=4.0),)
# First delays that come and go, then none, then a worker that stays slow.
CHANGING = (
    StragglerRule(probability=0.3, factor=6.0, end_step=56),
    StragglerRule(worker=0, factor=4.0, first_step=120),
)
MANY_LOOKS = 900  # about as often as a worker of these runs looks at its clock


def elastic_plan(changes: dict[str, object], *, workers: int = 3) -> Plan:
    known: dict[str, object] = {
        "strategy": StrategyOptions(sync_every=4),
        "steps": 62,
        "pace_s": 0.01,
        "optimizer": MOMENTUM,
        "task_options": {"batch_norm": True},
        **changes,
    }
    plan = small_plan("adaptive", num_workers=6, **known)
    return replace(plan, elastic=Elastic(workers=workers, min_workers=1, max_workers=workers))


def ways_taken(plan: Plan, history: History) -> list[SyncPolicy]:
    return [way for _, way in policies_of(history.plain, plan.steps).switches]


def assert_it_is_what_was_decided(plan: Plan, run: ElasticRun, history: History) -> None:
    assert run.hashes
    verdict = replay_elastic(plan, history, run.hashes[0])
    assert verdict.is_equal, verdict.parted
    assert len(set(run.hashes)) == 1
    ways = policies_of(history.plain, plan.steps)
    lineage = lineage_of(
        history.plain,
        steps=plan.steps,
        is_whole=lambda result: ways.is_whole(result, every=plan.strategy.sync_every, total=plan.steps),
    )
    assert lineage.problems == ()
    assert sum(stretch.end - stretch.first for stretch in lineage.stretches) == plan.steps


def test_shards_by_speed_have_the_bits_of_ssgd(tmp_path: Path) -> None:
    plan = elastic_plan(
        {"stragglers": LASTING, "strategy": StrategyOptions(adaptive=Allowed.BATCH)}, workers=2
    )
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    dealt = [event for event in history.plain if event.kind == "adapted"]
    assert [str(event.fields["shares"]) for event in dealt] == ["5,1"]
    assert set(run.hashes) == {virtual_hash(replace(plan, mode="ssgd", elastic=None, stragglers=()))}
    assert_it_is_what_was_decided(plan, run, history)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "changes",
    [{}, {"task": TORCH_ADAM, "optimizer": None, "task_options": {}}],
    ids=["momentum", "adam of torch"],
)
def test_local_steps_are_started_and_ended_as_in_the_plain_mode(
    workers: int, changes: dict[str, object], tmp_path: Path
) -> None:
    plan = elastic_plan({"stragglers": CHANGING, "steps": 190, **changes}, workers=workers)
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    ways = ways_taken(plan, history)
    assert ways[:2] == [SyncPolicy.SSGD, SyncPolicy.LOCAL_STEPS]
    assert ways[2] in (SyncPolicy.SSGD, SyncPolicy.BATCH), "once no delays came any more"
    assert_it_is_what_was_decided(plan, run, history)


def test_only_local_steps_are_localsgd(tmp_path: Path) -> None:
    options = StrategyOptions(adaptive=Allowed.LOCAL_STEPS, sync_every=4)
    plan = elastic_plan({"strategy": options, "stragglers": LASTING}, workers=2)
    run = ElasticRun(plan, tmp_path)
    history = run.run()
    assert any(event.kind == "adapted" for event in history.plain)
    plain = replace(
        plan, mode="localsgd", elastic=None, strategy=StrategyOptions(sync_every=4), stragglers=()
    )
    assert set(run.hashes) == {virtual_hash(plain)}
    assert_it_is_what_was_decided(plan, run, history)


OVER = pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
ANY = given(faults=any_faults(at_most=2, looks=MANY_LOOKS))  # one of three survives


@OVER
@settings(max_examples=3)
@ANY
def test_whichever_worker_dies_or_freezes_anywhere_the_bits_are_those_of_the_decided_policies(
    transport: Transport, faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_decided_ways(faults, tmp_path_factory.mktemp("run"), transport)


@pytest.mark.soak
@settings(max_examples=40)
@ANY
@OVER
def test_the_same_with_many_faults(
    transport: Transport, faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_decided_ways(faults, tmp_path_factory.mktemp("run"), transport)


def assert_decided_ways(faults: list[Fault], folder: Path, transport: Transport) -> None:
    plan = elastic_plan({"stragglers": PASSING, "transport": transport})
    run = ElasticRun(plan, folder, tuple(faults))
    assert_it_is_what_was_decided(plan, run, run.run())


def test_a_stop_request_ends_the_run_at_a_commit(tmp_path: Path) -> None:
    plan = elastic_plan({"stragglers": PASSING}, workers=2)
    run = ElasticRun(plan, tmp_path, stop_at=60)
    history = run.run()
    result = 1 + max(
        row.position // plan.num_workers for rows in history.steps.values() for row in rows if row.synced
    )
    assert result < plan.steps
    assert policies_of(history.plain, result).is_whole(result, every=4, total=plan.steps)
    assert replay_elastic(plan, history, run.hashes[0]).is_equal
