"""G: gossip, agreeing with neighbours only: what mixing keeps, and how fast it brings workers together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from paceline.laws.lab import QUADRATIC, RANDOM_SPEEDS, Lab, distance, run
from paceline.laws.law import Finding, Law
from paceline.plan.plan import GossipVariant, OptimizerChoice, Plan, StrategyOptions
from paceline.sync.topology import Topology, metropolis, rounds_to_all
from paceline.transport.arena import WEIGHT
from paceline.worker.replica import Replica

BOTH_WAYS = [t for t in Topology if t is not Topology.EXPONENTIAL]


@dataclass(slots=True)
class _Seen:
    """What every worker held after every step, from the first on, after which each stood somewhere else."""

    models: dict[int, list[Tensor]]  # by finished steps, then by rank
    weights: dict[int, list[float]]

    def spread(self, steps: int) -> float:
        """How far the workers are from their mean."""
        stacked = torch.stack(self.models[steps])
        return float((stacked - stacked.mean(dim=0)).norm())

    def mean(self, steps: int) -> Tensor:
        """Of the x, which push-sum holds as z·w."""
        return torch.stack(
            [z * w for z, w in zip(self.models[steps], self.weights[steps], strict=True)]
        ).mean(0)


def _scattered(plan: Plan) -> _Seen:
    """Run without learning; after its first step each worker is moved somewhere else."""
    seen = _Seen({}, {})

    def look(rank: int, steps: int, replica: Replica) -> None:
        layout = replica.arena.layout
        part = replica.arena.state[: layout.buffers_start]
        if steps == 1:
            dice = torch.Generator().manual_seed(rank)
            part.copy_(torch.randn(part.shape, generator=dice, dtype=part.dtype))
        models = seen.models.setdefault(steps, [part] * plan.num_workers)
        models[rank] = part.detach().clone()
        weight = float(replica.arena.state[layout.tail_start + WEIGHT])
        seen.weights.setdefault(steps, [1.0] * plan.num_workers)[rank] = weight

    run(replace(plan, lr=0.0), after_step=look)
    seen.models.pop(plan.steps)  # the last step also takes the exact mean
    return seen


def g1_mixing_keeps_the_mean(lab: Lab) -> Finding:
    """Also on graphs whose workers have different numbers of neighbours."""
    worst = {}
    for plan in _plans(lab, GossipVariant.DPSGD, BOTH_WAYS, workers=6):
        seen = _scattered(plan)
        moved = (float((seen.mean(steps) - seen.mean(1)).abs().max()) for steps in seen.models)
        worst[plan.strategy.topology.value] = max(moved)
    return _at_most(worst, 1e-12, "the mean moved by")


def g2_the_spread_shrinks_by_lambda2(lab: Lab) -> Finding:
    excess = {}
    for plan in _plans(lab, GossipVariant.DPSGD, BOTH_WAYS, workers=6):
        topology, seen = plan.strategy.topology, _scattered(plan)
        limit = _second_eigenvalue(topology, plan.num_workers)
        excess[topology.value] = max(
            seen.spread(after) - limit * seen.spread(before)
            for before, after in pairwise(sorted(seen.models))
        )
    return _at_most(excess, 1e-12, "the distance from consensus was above λ₂ times the one before by at most")


def g3_everybody_a_neighbour_is_synchronous(lab: Lab) -> Finding:
    """Update, then mix, is ssgd; mix, then update, has other gradients, except where all Hessians agree."""
    momentum = OptimizerChoice(name="momentum", lr=0.05)

    def apart(variant: GossipVariant, **changes: object) -> float:
        options = StrategyOptions(gossip=variant, topology=Topology.COMPLETE)
        ours = run(lab.plan(strategy=options, steps=30, stragglers=RANDOM_SPEEDS, **changes))
        return distance(ours, run(lab.other("ssgd", steps=30, **changes)))

    equal = {
        "diffusion": apart(GossipVariant.DIFFUSION),
        "diffusion with momentum": apart(GossipVariant.DIFFUSION, optimizer=momentum),
        "dpsgd on a quadratic": apart(GossipVariant.DPSGD, task=QUADRATIC),
    }
    different = apart(GossipVariant.DPSGD)
    found = _at_most(equal, 1e-12, "distance from ssgd")
    return Finding(
        found.ok and different > 1e-9,
        f"{found.measured}; dpsgd elsewhere, which must differ, {different:.1e}",
    )


def g4_push_sum_gives_away_what_it_has(lab: Lab) -> Finding:
    """Weights sum to N at every step, and the models meet at the mean, also where the graph is lopsided."""
    lost, missed, lopsided = {}, {}, 0.0
    for plan in _plans(lab, GossipVariant.PUSH_SUM, list(Topology), workers=5, steps=80):
        topology, seen = plan.strategy.topology.value, _scattered(plan)
        lost[topology] = max(abs(sum(weights) - plan.num_workers) for weights in seen.weights.values())
        last = max(seen.models)
        missed[topology] = max(float((z - seen.mean(1)).abs().max()) for z in seen.models[last])
        lopsided = max(lopsided, max(seen.weights[last]))
    sums = _at_most(lost, 1e-12, "|Σw - N|")
    ends = _at_most(missed, 1e-9, f"after {last} steps, distance from the mean")
    return Finding(
        sums.ok and ends.ok and lopsided > 1.1,
        f"{sums.measured}; {ends.measured}; largest weight {lopsided:.2f}",
    )


def g9_a_wish_to_stop_reaches_all_before_it_is_due(lab: Lab) -> Finding:
    """Nobody asks everybody, the wish is passed on, and yet all end after the same step. Two may wish."""
    ends = {}
    for variant, topologies in ((GossipVariant.DPSGD, BOTH_WAYS), (GossipVariant.PUSH_SUM, list(Topology))):
        for plan in _plans(lab, variant, topologies, workers=9, steps=40):
            done = run(replace(plan, timeout_s=5.0), stops_after={2: 6, 7: 8})
            steps = {len(rows) for rows in done.history.steps.values()}
            within = 6 <= min(steps) <= max(steps) <= 6 + rounds_to_all(plan.strategy.topology, 9)
            ends[f"{variant.value} {plan.strategy.topology.value}"] = steps if within else {-1, *steps}
    apart = {name: sorted(steps) for name, steps in ends.items() if len(steps) > 1}
    last = {name: max(steps) for name, steps in ends.items()}
    return Finding(not apart, f"wished after step 6 of 9 workers; all ended after {last}; apart: {apart}")


def _plans(
    lab: Lab, variant: GossipVariant, topologies: Sequence[Topology], *, workers: int, steps: int = 20
) -> list[Plan]:
    return [
        lab.plan(
            num_workers=workers,
            steps=steps,
            stragglers=RANDOM_SPEEDS,
            strategy=StrategyOptions(gossip=variant, topology=topology),
        )
        for topology in topologies
    ]


def _second_eigenvalue(topology: Topology, num_workers: int) -> float:
    weights = np.zeros((num_workers, num_workers))
    for rank in range(num_workers):
        for source, weight in metropolis(topology, rank, num_workers).weights:
            weights[rank, source] = weight
    return float(np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2])


def _at_most(found: dict[str, float], limit: float, what: str) -> Finding:
    said = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
    return Finding(max(found.values()) <= limit, f"{what}: {said}; limit {limit:.0e}")


ONLY = ("gossip",)
LAWS = (
    Law("G1", "mixing keeps the mean of all workers, on any graph", ONLY, g1_mixing_keeps_the_mean),
    Law(
        "G2",
        "without gradients the distance from consensus shrinks at least by λ₂ per step",
        ONLY,
        g2_the_spread_shrinks_by_lambda2,
    ),
    Law(
        "G3",
        "on a complete graph diffusion computes what ssgd computes; dpsgd does on quadratics only",
        ONLY,
        g3_everybody_a_neighbour_is_synchronous,
    ),
    Law(
        "G4",
        "push-sum: the weights sum to N at every step, and the models meet at the mean",
        ONLY,
        g4_push_sum_gives_away_what_it_has,
    ),
    Law(
        "G9",
        "a wish to stop goes from neighbour to neighbour, and all end after the same step",
        ONLY,
        g9_a_wish_to_stop_reaches_all_before_it_is_due,
    ),
)
