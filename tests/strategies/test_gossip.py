"""Gossip: workers learn from their neighbours only, and end with one common model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import RANDOM_SPEEDS, small_plan
from tests.fixtures.runs.run_plans import distance, real, virtual, virtual_hash

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import GossipVariant, OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.samples import SampleStream, slice_of
from paceline.sync.topology import Topology, metropolis_weights
from paceline.worker.participant import state_hash
from paceline.worker.wiring import build_task, set_up_torch


def options(variant: GossipVariant, topology: Topology = Topology.RING) -> StrategyOptions:
    return StrategyOptions(gossip=variant, topology=topology)


def by_hand(plan: Plan, *, mixes_first: bool) -> dict[str, torch.Tensor]:
    """The update rule as its authors write it, one worker after another, with torch's own SGD."""
    set_up_torch(plan)
    task = build_task(plan)
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    torch.manual_seed(plan.seed)
    first = task.model().state_dict()
    models = [task.model() for _ in range(plan.num_workers)]
    for model in models:
        model.load_state_dict(first)
    steps = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]

    def mix() -> None:
        old = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
        for rank, model in enumerate(models):
            weights = metropolis_weights(plan.strategy.topology, rank, plan.num_workers).weights
            for name, value in model.state_dict().items():
                value.copy_(sum(weight * old[source][name] for source, weight in weights))

    for step in range(plan.steps):
        for rank, model in enumerate(models):
            steps[rank].zero_grad()
            batch = samples.batch(stream.take(*slice_of(rank, step, plan.batch_sizes)))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if mixes_first:
            mix()
        for optimizer in steps:
            optimizer.step()
        if not mixes_first:
            mix()
    states = [model.state_dict() for model in models]
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in first}


@pytest.mark.parametrize("variant", [GossipVariant.DPSGD, GossipVariant.DIFFUSION])
@pytest.mark.parametrize("topology", [Topology.RING, Topology.STAR])
def test_the_update_is_the_published_one(variant: GossipVariant, topology: Topology) -> None:
    plan = small_plan(
        "gossip",
        num_workers=5,
        strategy=options(variant, topology),
        optimizer=OptimizerChoice(name="momentum", lr=0.1),
    )
    expected = by_hand(plan, mixes_first=variant is GossipVariant.DPSGD)
    assert distance(virtual(plan).final_state(), expected) < 1e-12


def test_on_a_graph_with_equal_in_and_out_degrees_push_sum_is_diffusion() -> None:
    plans = [
        small_plan("gossip", num_workers=5, strategy=options(variant))
        for variant in (GossipVariant.PUSH_SUM, GossipVariant.DIFFUSION)
    ]
    one, other = (virtual(plan).final_state() for plan in plans)
    assert distance(one, other) < 1e-12


@pytest.mark.parametrize("variant", GossipVariant)
def test_workers_differ_until_the_end_and_then_hold_one_model(variant: GossipVariant) -> None:
    topology = Topology.EXPONENTIAL if variant is GossipVariant.PUSH_SUM else Topology.RING
    plan = small_plan(
        "gossip", num_workers=4, strategy=options(variant, topology), task_options={"batch_norm": True}
    )
    seen: dict[int, set[str]] = {}
    run = virtual(
        plan,
        after_step=lambda _, steps, replica: seen.setdefault(steps, set()).add(
            state_hash(replica.arena.named_state())
        ),
    )
    assert [len(seen[steps]) > 1 for steps in range(1, plan.steps + 1)] == [True] * (plan.steps - 1) + [False]
    assert [row.synced for row in run.history.steps[0]] == [False] * (plan.steps - 1) + [True]


def test_a_passing_delay_is_not_felt_on_the_far_side_at_once() -> None:
    slow = (StragglerRule(worker=0, delay_s=1.0, first_step=3, end_step=4),)
    plan = small_plan("gossip", num_workers=8, steps=12, pace_s=0.01, stragglers=slow)
    rows = virtual(plan).history.steps
    waited = {rank: next(row.step for row in rows[rank] if row.wait_ns > 0) for rank in range(1, 8)}
    # A worker d edges away first misses the news of d steps ago.
    assert waited == {1: 3, 2: 4, 3: 5, 4: 6, 5: 5, 6: 4, 7: 3}


@pytest.mark.parametrize("variant", [GossipVariant.DPSGD, GossipVariant.PUSH_SUM])
def test_gloo_and_shared_memory_mix_alike(
    variant: GossipVariant, launcher: LocalLauncher, tmp_path: Path
) -> None:
    topology = Topology.STAR if variant is GossipVariant.PUSH_SUM else Topology.RING
    plan = small_plan("gossip", num_workers=3, strategy=options(variant, topology), stragglers=RANDOM_SPEEDS)
    over_gloo = real(replace(plan, transport=Transport.GLOO), tmp_path / "gloo", launcher)
    over_shm = real(plan, tmp_path / "shm", launcher)
    assert over_shm.sha256 == virtual_hash(plan)
    losses = [
        [[row.loss for row in rows] for _, rows in sorted(run.history.steps.items())]
        for run in (over_gloo, over_shm)
    ]
    assert losses[0] == losses[1]  # every replica, to the bit; only the final mean is gloo's own sum
    moved = [
        [[row.bytes_out for row in rows[:-1]] for _, rows in sorted(run.history.steps.items())]
        for run in (over_gloo, over_shm)
    ]
    assert moved[0] == moved[1]
