"""G: what holds without a barrier and without a server: no deadlock, no lost work, and who waits for whom."""

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from paceline.clock import SystemClock
from paceline.errors import PacelineError
from paceline.ids import Rank
from paceline.laws.lab import PACE_S, RANDOM_SPEEDS, Lab, ledger, run
from paceline.laws.law import Finding, Law
from paceline.plan.explain import explain
from paceline.plan.plan import Plan, StrategyOptions
from paceline.strategies.adpsgd import Adpsgd
from paceline.sync.dice import draw_u64
from paceline.sync.stragglers import StragglerRule
from paceline.sync.topology import Topology, neighbours
from paceline.transport.ports import Peers
from paceline.transport.shm_peers import ShmPeers, peers_world
from paceline.transport.torch_dist import ring_bytes
from paceline.worker.wiring import strategy_class

EXCHANGES, THREADS, PATIENCE_S = 100_000, 4, 4.0
SWITCH_S = 5e-5  # threads take turns this often, a hundred times as often as usual
GRAPHS = (Topology.RING, Topology.HYPERCUBE, Topology.STAR)


def g5_a_hundred_thousand_exchanges_without_a_deadlock(lab: Lab) -> Finding:
    """Threads on the real locks and vectors, held in the strategy's order; the sum of all is kept."""
    world, clock = peers_world(THREADS), SystemClock()
    # A copy maps the shared memory for itself, as each process does.
    peers = [
        ShmPeers(copy.copy(world), Rank(rank), clock=clock, timeout_s=PATIENCE_S) for rank in range(THREADS)
    ]
    vectors = [peer.open(16, torch.float64, shares=EXCHANGES, done=0) for peer in peers]
    for rank, vector in enumerate(vectors):
        vector.fill_(rank)
    kind: type[Adpsgd] = strategy_class(lab.subject or lab.mode)
    done, errors = [0] * THREADS, list[str]()
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
    me = peers.rank
    try:
        while (share := peers.take(wants_stop=False)) is not None:
            other = Rank((me + 1 + draw_u64(7, share) % (THREADS - 1)) % THREADS)
            with peers.hold(order(me, other), is_exchange=True) as held:
                one, two = held.vectors
                one.add_(two).mul_(0.5)
                two.copy_(one)
            done[me] += 1
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
    """In the final model each sample has moved its own parameter by 1/N, whoever mixed it with whom."""
    found, wrong = [], []
    for topology in GRAPHS:
        options = StrategyOptions(topology=topology)
        plan = ledger(lab.plan(num_workers=5, strategy=options, stragglers=RANDOM_SPEEDS))
        done = run(plan)
        off = float((done.final_state()["entries"] + 1 / 5).abs().max())
        rows = [row for mine in done.history.steps.values() for row in mine]
        whole = sorted(row.position for row in rows) == list(range(plan.total_gradients))
        size = done.replicas[0].arena.state.nbytes
        moved = sum(row.bytes_out for row in rows), sum(row.bytes_in for row in rows)
        if off > 1e-12 or not whole or moved != (_travels(lab.mode, plan, size),) * 2:
            wrong.append(topology.value)
        found.append(f"{topology.value} off by {off:.0e}, {moved[0]} bytes")
    return Finding(not wrong, f"{'; '.join(found)}; wrong: {wrong}")


def _travels(mode: str, plan: Plan, size: int) -> int:
    """Bytes that all send: to each neighbour, or to one of them, at every step; then the exact mean."""
    workers, topology = plan.num_workers, plan.strategy.topology
    if mode == "adpsgd":
        return size * (plan.total_gradients + workers * (workers - 1))
    degrees = sum(len(neighbours(topology, rank, workers)) for rank in range(workers))
    return size * degrees * plan.steps + ring_bytes(size, workers) * workers


def g7_a_ring_waits_for_a_lasting_straggler(lab: Lab) -> Finding:
    rate, says_so = _rate_with_a_straggler(lab, "same long-run rate as ssgd")
    share = rate * 3 * PACE_S / 4
    return Finding(
        0.98 <= share <= 1.03 and says_so,
        f"{share:.3f} of N/t_max on a ring of 4; the plan says so: {says_so}",
    )


def g7_pairs_wait_for_nobody(lab: Lab) -> Finding:
    rate, says_so = _rate_with_a_straggler(lab, "go on without waiting")
    share = rate * PACE_S / (3 + 1 / 3)
    return Finding(
        0.98 <= share <= 1.001 and says_so,
        f"{share:.3f} of Σ 1/tᵢ on a ring of 4; the plan says so: {says_so}",
    )


def _rate_with_a_straggler(lab: Lab, words: str) -> tuple[float, bool]:
    plan = lab.plan(num_workers=4, steps=200, stragglers=(StragglerRule(worker=1, factor=3.0),))
    rate = plan.total_gradients / run(plan).elapsed_s
    return rate, any(words in line.text for line in explain(replace(plan, mode=lab.mode)))


def g8_exchanges_have_one_order(lab: Lab) -> Finding:
    """Numbered 1 … T without a gap; a worker copies after its exchange before, and before its next."""
    wrong, counted = [], 0
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


LAWS = (
    Law(
        "G5",
        "a hundred thousand exchanges of random pairs end without a deadlock, and keep the sum",
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
        "a lasting straggler slows a ring down to N/t_max, and the plan says so",
        ("gossip",),
        g7_a_ring_waits_for_a_lasting_straggler,
        per_mode=True,
    ),
    Law(
        "G7",
        "a lasting straggler slows nobody else down, and the plan says so",
        ("adpsgd",),
        g7_pairs_wait_for_nobody,
        per_mode=True,
    ),
    Law(
        "G8",
        "all exchanges have one order, that of each vector's changes",
        ("adpsgd",),
        g8_exchanges_have_one_order,
    ),
)
