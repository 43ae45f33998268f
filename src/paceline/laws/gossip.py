"""G: gossip, agreeing with neighbours only: what mixing keeps, and how fast it brings workers together."""

import copy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.core.errors import PacelineError
from paceline.core.ids import Rank
from paceline.laws.lab import PACE_S, QUADRATIC, RANDOM_SPEEDS, Finding, Lab, Law, distance, ledger, run
from paceline.plan.explain import explain
from paceline.plan.plan import GossipVariant, OptimizerChoice, Plan, StrategyOptions
from paceline.strategies.adpsgd import Adpsgd
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.rng import draw_u64
from paceline.sync.topology import Topology, metropolis_weights, neighbours, rounds_to_all
from paceline.transport.arena import WEIGHT
from paceline.transport.ports import Peers
from paceline.transport.shm_peers import ShmPeers, peers_world
from paceline.transport.torch_dist import ring_bytes
from paceline.worker.replica import Replica
from paceline.worker.wiring import strategy_class

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

    def observe(rank: int, steps: int, replica: Replica) -> None:
        layout = replica.arena.layout
        part = replica.arena.state[: layout.buffers_start]
        if steps == 1:
            rng = torch.Generator().manual_seed(rank)
            part.copy_(torch.randn(part.shape, generator=rng, dtype=part.dtype))
        models = seen.models.setdefault(steps, [part] * plan.num_workers)
        models[rank] = part.detach().clone()
        weight = float(replica.arena.state[layout.tail_start + WEIGHT])
        seen.weights.setdefault(steps, [1.0] * plan.num_workers)[rank] = weight

    run(replace(plan, lr=0.0), after_step=observe)
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
        topology = plan.strategy.topology
        seen = _scattered(plan)
        limit = _second_eigenvalue(topology, plan.num_workers)
        excess[topology.value] = max(
            seen.spread(after) - limit * seen.spread(before)
            for before, after in pairwise(sorted(seen.models))
        )
    return _at_most(excess, 1e-12, "the distance from consensus was above λ₂ times the one before by at most")


def g3_a_full_graph_is_synchronous(lab: Lab) -> Finding:
    """Update, then mix, is ssgd; mix, then update, has other gradients, except where all Hessians agree."""
    momentum = OptimizerChoice(name="momentum", lr=0.05)

    def difference(variant: GossipVariant, **changes: object) -> float:
        options = StrategyOptions(gossip=variant, topology=Topology.COMPLETE)
        ours = run(lab.plan(strategy=options, steps=30, stragglers=RANDOM_SPEEDS, **changes))
        return distance(ours, run(lab.other("ssgd", steps=30, **changes)))

    equal = {
        "diffusion": difference(GossipVariant.DIFFUSION),
        "diffusion with momentum": difference(GossipVariant.DIFFUSION, optimizer=momentum),
        "dpsgd on a quadratic": difference(GossipVariant.DPSGD, task=QUADRATIC),
    }
    different = difference(GossipVariant.DPSGD)
    finding = _at_most(equal, 1e-12, "distance from ssgd")
    return Finding(
        finding.ok and different > 1e-9,
        f"{finding.measured}; dpsgd elsewhere, which must differ, {different:.1e}",
    )


def g4_push_sum_gives_away_what_it_has(lab: Lab) -> Finding:
    """Weights sum to N at every step, and the models converge to the mean, also on a lopsided graph."""
    lost = {}
    missed = {}
    lopsided = 0.0
    for plan in _plans(lab, GossipVariant.PUSH_SUM, list(Topology), workers=5, steps=80):
        topology = plan.strategy.topology.value
        seen = _scattered(plan)
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


def g9_a_stop_request_reaches_all_before_it_is_due(lab: Lab) -> Finding:
    """The request passes between neighbours only, and all end after the same step. Two may request it."""
    ends = {}
    for variant, topologies in ((GossipVariant.DPSGD, BOTH_WAYS), (GossipVariant.PUSH_SUM, list(Topology))):
        for plan in _plans(lab, variant, topologies, workers=9, steps=40):
            done = run(replace(plan, timeout_s=5.0), stops_after={2: 6, 7: 8})
            steps = {len(rows) for rows in done.history.steps.values()}
            within = 6 <= min(steps) <= max(steps) <= 6 + rounds_to_all(plan.strategy.topology, 9)
            ends[f"{variant.value} {plan.strategy.topology.value}"] = steps if within else {-1, *steps}
    different = {name: sorted(steps) for name, steps in ends.items() if len(steps) > 1}
    last = {name: max(steps) for name, steps in ends.items()}
    return Finding(
        not different,
        f"stop requested after step 6 of 9 workers; all ended after {last}; maximum difference: {different}",
    )


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
        for source, weight in metropolis_weights(topology, rank, num_workers).weights:
            weights[rank, source] = weight
    return float(np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2])


def _at_most(distances: dict[str, float], limit: float, noun: str) -> Finding:
    listed = ", ".join(f"{name} {value:.1e}" for name, value in distances.items())
    return Finding(max(distances.values()) <= limit, f"{noun}: {listed}; limit {limit:.0e}")


ONLY = ("gossip",)
LAWS = (
    Law("G1", "mixing conserves the mean of all workers, on any graph", ONLY, g1_mixing_keeps_the_mean),
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
        g3_a_full_graph_is_synchronous,
    ),
    Law(
        "G4",
        "push-sum: the weights sum to N at every step, and the models converge to the mean",
        ONLY,
        g4_push_sum_gives_away_what_it_has,
    ),
    Law(
        "G9",
        "a stop request spreads from neighbour to neighbour, and all stop after the same step",
        ONLY,
        g9_a_stop_request_reaches_all_before_it_is_due,
    ),
)


EXCHANGES = 100_000
THREADS = 4
PATIENCE_S = 4.0
SWITCH_S = 5e-5  # threads take turns this often, a hundred times as often as usual
GRAPHS = (Topology.RING, Topology.HYPERCUBE, Topology.STAR)


def g5_a_hundred_thousand_exchanges_without_a_deadlock(lab: Lab) -> Finding:
    """Threads on the real locks and vectors, held in the strategy's order; the sum of all is kept."""
    world = peers_world(THREADS)
    clock = SystemClock()
    # A copy maps the shared memory for itself, as each process does.
    peers = [
        ShmPeers(copy.copy(world), Rank(rank), clock=clock, timeout_s=PATIENCE_S) for rank in range(THREADS)
    ]
    vectors = [peer.open(16, torch.float64, shares=EXCHANGES, done=0) for peer in peers]
    for rank, vector in enumerate(vectors):
        vector.fill_(rank)
    kind: type[Adpsgd] = strategy_class(lab.subject or lab.mode)
    done = [0] * THREADS
    errors = list[str]()
    started_ns = clock.now_ns()
    with _switching_often():
        threads = [
            threading.Thread(target=_exchange, args=(peer, kind.holding_order, done, errors))
            for peer in peers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    moved = float((torch.stack(vectors).sum(dim=0) - sum(range(THREADS))).abs().max())
    world.close()
    return Finding(
        not errors and sum(done) == EXCHANGES and moved <= 1e-12,
        f"{sum(done):,} exchanges of {THREADS} threads in {(clock.now_ns() - started_ns) / 1e9:.1f} s; "
        f"the sum moved by {moved:.1e}; errors: {errors[:1]}",
    )


def _exchange(
    peers: Peers, order: Callable[[Rank, Rank], list[Rank]], done: list[int], errors: list[str]
) -> None:
    rank = peers.rank
    try:
        while (share := peers.take(wants_stop=False)) is not None:
            other = Rank((rank + 1 + draw_u64(7, share) % (THREADS - 1)) % THREADS)
            with peers.hold(order(rank, other), is_exchange=True) as held:
                first, two = held.vectors
                first.add_(two).mul_(0.5)
                two.copy_(first)
            done[rank] += 1
    except PacelineError as error:
        errors.append(error.what)  # it is the law's finding


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def g6_every_gradient_counts_once(lab: Lab) -> Finding:
    """In the final model each sample has moved its own parameter by 1/N, whichever workers mixed it."""
    results = []
    wrong = []
    for topology in GRAPHS:
        options = StrategyOptions(topology=topology)
        plan = ledger(lab.plan(num_workers=5, strategy=options, stragglers=RANDOM_SPEEDS))
        done = run(plan)
        off = float((done.final_state()["entries"] + 1 / 5).abs().max())
        rows = [row for worker_rows in done.history.steps.values() for row in worker_rows]
        whole = sorted(row.position for row in rows) == list(range(plan.total_gradients))
        size = done.replicas[0].arena.state.nbytes
        moved = sum(row.bytes_out for row in rows), sum(row.bytes_in for row in rows)
        if off > 1e-12 or not whole or moved != (_travels(lab.mode, plan, size),) * 2:
            wrong.append(topology.value)
        results.append(f"{topology.value} off by {off:.0e}, {moved[0]} bytes")
    return Finding(not wrong, f"{'; '.join(results)}; wrong: {wrong}")


def _travels(mode: str, plan: Plan, size: int) -> int:
    """Bytes that all send: to each neighbour, or to one of them, at every step; then the exact mean."""
    workers = plan.num_workers
    topology = plan.strategy.topology
    if mode == "adpsgd":
        return size * (plan.total_gradients + workers * (workers - 1))
    degrees = sum(len(neighbours(topology, rank, workers)) for rank in range(workers))
    return size * degrees * plan.steps + ring_bytes(size, workers) * workers


def g7_a_ring_waits_for_a_lasting_straggler(lab: Lab) -> Finding:
    rate, says_so = _rate_with_a_straggler(lab, "long-run rate of ssgd")
    share = rate * 3 * PACE_S / 4
    return Finding(
        0.98 <= share <= 1.03 and says_so,
        f"{share:.3f} of N/t_max on a ring of 4; reported by the plan: {says_so}",
    )


def g7_pairs_wait_for_no_other(lab: Lab) -> Finding:
    rate, says_so = _rate_with_a_straggler(lab, "continue without waiting")
    share = rate * PACE_S / (3 + 1 / 3)
    return Finding(
        0.98 <= share <= 1.001 and says_so,
        f"{share:.3f} of Σ 1/tᵢ on a ring of 4; reported by the plan: {says_so}",
    )


def _rate_with_a_straggler(lab: Lab, phrase: str) -> tuple[float, bool]:
    plan = lab.plan(num_workers=4, steps=200, stragglers=(StragglerRule(worker=1, factor=3.0),))
    rate = plan.total_gradients / run(plan).elapsed_s
    return rate, any(phrase in line.text for line in explain(replace(plan, mode=lab.mode)))


def g8_exchanges_have_one_order(lab: Lab) -> Finding:
    """Numbered 1 … T without a gap; a worker copies after its exchange before, and before its next."""
    wrong = []
    counted = 0
    for seed in range(6):
        plan = lab.plan(num_workers=4, seed=seed, stragglers=RANDOM_SPEEDS)
        steps = run(plan).history.steps
        numbers = [row.exchange for rows in steps.values() for row in rows if row.exchange is not None]
        counted += len(numbers)
        if sorted(numbers) != list(range(1, plan.total_gradients + 1)):
            wrong.append(f"seed {seed}: numbers")
        for rank, rows in steps.items():
            marks = [mark for row in rows for mark in (row.version, row.exchange or 0)]
            near = neighbours(plan.strategy.topology, rank, 4)
            if marks != sorted(marks) or any(row.peer not in near for row in rows):
                wrong.append(f"seed {seed}: worker {rank}")
    return Finding(not wrong, f"{counted} exchanges of 6 schedules; wrong: {wrong[:3]}")


PAIRWISE_LAWS = (
    Law(
        "G5",
        "100,000 exchanges of random pairs end without a deadlock, and conserve the sum",
        ("adpsgd",),
        g5_a_hundred_thousand_exchanges_without_a_deadlock,
    ),
    Law(
        "G6",
        "in the final model every gradient counts once, with weight 1/N; bytes are those of the neighbours",
        ("gossip", "adpsgd"),
        g6_every_gradient_counts_once,
        per_mode=True,
    ),
    Law(
        "G7",
        "a persistent straggler slows a ring down to N/t_max, as the plan reports",
        ("gossip",),
        g7_a_ring_waits_for_a_lasting_straggler,
        per_mode=True,
    ),
    Law(
        "G7",
        "a persistent straggler slows no other worker, as the plan reports",
        ("adpsgd",),
        g7_pairs_wait_for_no_other,
        per_mode=True,
    ),
    Law(
        "G8",
        "all exchanges have one order, that of each vector's changes",
        ("adpsgd",),
        g8_exchanges_have_one_order,
    ),
)
