"""S: synchronous SGD and the collectives under it."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise

import torch
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.core.ids import Rank
from paceline.laws.lab import (
    PACE_S,
    RANDOM_SPEEDS,
    Finding,
    Lab,
    Law,
    bit_equal,
    distance,
    final_hash,
    ledger,
    run,
    within,
)
from paceline.laws.witness import Witness
from paceline.plan.plan import OptimizerChoice, Plan, StrategyOptions
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.rng import draw_uniform
from paceline.transport.ports import Traffic
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_collective import SEMAPHORES, ShmCollective, mean_in_place
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.wiring import build_task, set_up_torch

SIZE = 960  # divides by N * 16 for every N tried, so that pieces are equal
WORLDS = (2, 3, 4, 5)


def s1_many_small_batches_are_one_large(lab: Lab) -> Finding:
    many = run(lab.plan(num_workers=4, batch_sizes=(3,) * 4))
    single = run(lab.other("single", batch_sizes=(12,)))
    return within(distance(many, single), 1e-12)


def s2_unequal_batches_are_weighted(lab: Lab) -> Finding:
    uneven = run(lab.plan(num_workers=2, batch_sizes=(2, 6)))
    single = run(lab.other("single", batch_sizes=(8,)))
    return within(distance(uneven, single), 1e-12)


def s2_unweighted_would_be_wrong(lab: Lab) -> Finding:
    plan = lab.plan(num_workers=2, batch_sizes=(2, 6))
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    samples = task.samples()

    def gradient(first: int, end: int) -> Tensor:
        model.zero_grad()
        batch = samples.batch(torch.arange(first, end).numpy())
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])

    union = gradient(0, 8)
    small = gradient(0, 2)
    large = gradient(2, 8)
    unweighted = float((union - (small + large) / 2).abs().max())
    weighted = float((union - (small * 2 + large * 6) / 8).abs().max())
    return Finding(
        unweighted > 1e-3 and weighted < 1e-12,
        f"error unweighted {unweighted:.2e}, weighted {weighted:.1e}",
    )


def s3_all_ranks_end_bit_equal(_: Lab) -> Finding:
    unequal = [n for n in WORLDS if len({v.numpy().tobytes() for v in _reduce(n)[0]}) > 1]
    return Finding(not unequal, f"shared memory, N in {WORLDS}; unequal: {unequal}")


def s3_the_mean_is_near_the_exact_one(_: Lab) -> Finding:
    worst = 0.0
    for world in WORLDS:
        after, before = _reduce(world)[:2]
        exact = torch.stack(before).double().mean(0)
        bound = (world - 1) * torch.finfo(torch.float32).eps / 2 * torch.stack(before).double().abs().sum(0)
        worst = max(worst, float(((after[0].double() - exact).abs() / bound).max()))
    return Finding(worst <= 1.0, f"largest error is {worst:.2f} of the bound (N-1)·u·Σ|g|")


def s3_bytes_are_those_of_a_ring(_: Lab) -> Finding:
    wrong = []
    for world in WORLDS:
        expected = 2 * (world - 1) * SIZE * 4 // world
        traffic = _reduce(world)[2]
        wrong += [(world, t.bytes_out) for t in traffic if (t.bytes_out, t.bytes_in) != (expected, expected)]
    return Finding(not wrong, f"2(N-1)/N·d·4 for N in {WORLDS}, d = {SIZE}; wrong: {wrong}")


def s5_the_order_of_ranks_hardly_matters(_: Lab) -> Finding:
    worst = 0.0
    for world in WORLDS:
        vectors = _vectors(world)
        bound = (world - 1) * torch.finfo(torch.float32).eps * torch.stack(vectors).abs().sum(0)
        forward = [v.clone() for v in vectors]
        backward = [v.clone() for v in reversed(vectors)]
        mean_in_place(forward)
        mean_in_place(backward)
        worst = max(worst, float(((forward[0] - backward[0]).abs() / bound).max()))
    return Finding(worst <= 1.0, f"largest change is {worst:.2f} of the bound")


def s6_a_synchronous_server_is_an_all_reduce(lab: Lab) -> Finding:
    mode = "ps" if lab.mode == "ssgd" else "ssgd"
    return within(distance(run(lab.plan(num_workers=4)), run(lab.other(mode, num_workers=4))), 1e-12)


def s6_also_for_adam(lab: Lab) -> Finding:
    """Adam is not linear: a server that applies the gradients of a step one by one is found out."""
    choice = OptimizerChoice(name="adam", lr=0.05)
    served = run(lab.plan(num_workers=4, optimizer=choice))
    return within(distance(served, run(lab.other("ssgd", num_workers=4, optimizer=choice))), 1e-12)


def _vectors(world: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(world)
    return [torch.randn(SIZE, generator=rng, dtype=torch.float32) for _ in range(world)]


def _reduce(world_size: int) -> tuple[list[Tensor], list[Tensor], list[Traffic]]:
    """(after, before, traffic) of one all-reduce of random vectors over real shared memory."""
    world = SharedWorld(parties=world_size, semaphores_each=SEMAPHORES, words_each=0)
    before = _vectors(world_size)
    # A copy of the world each, as a fork would make: all map the same file from its beginning.
    ranks = [
        ShmCollective(copy(world), Rank(r), clock=SystemClock(), timeout_s=30) for r in range(world_size)
    ]
    after = [rank.allocate(SIZE, torch.float32) for rank in ranks]
    traffic: list[Traffic] = [Traffic()] * world_size

    def reduce(rank: int) -> None:
        after[rank].copy_(before[rank])
        traffic[rank] = ranks[rank].all_reduce_mean(after[rank])

    _in_threads(reduce, world_size)
    results = [vector.clone() for vector in after]
    world.close()
    return results, before, traffic


def _in_threads(body: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


SYNC = ("ssgd",)
LAWS = (
    Law(
        "S1",
        "N workers with batch b compute what one computes with batch N·b",
        SYNC,
        s1_many_small_batches_are_one_large,
    ),
    Law(
        "S2",
        "unequal batches weighted by b/Σb give the gradient of their union",
        ("ssgd", "ps"),
        s2_unequal_batches_are_weighted,
        per_mode=True,
    ),
    Law("S2.negative", "unweighted, they would not", SYNC, s2_unweighted_would_be_wrong),
    Law("S3", "after an all-reduce all ranks are bitwise equal", SYNC, s3_all_ranks_end_bit_equal),
    Law(
        "S3.error",
        "the all-reduced mean is within (N-1)·u·Σ|g| of the exact one",
        SYNC,
        s3_the_mean_is_near_the_exact_one,
    ),
    Law(
        "S3.bytes",
        "each rank sends and receives exactly 2(N-1)/N of the vector",
        SYNC,
        s3_bytes_are_those_of_a_ring,
    ),
    Law(
        "S5",
        "permuting the ranks changes the mean by no more than rounding",
        SYNC,
        s5_the_order_of_ranks_hardly_matters,
    ),
    Law(
        "S6",
        "a synchronous server computes what an all-reduce computes",
        ("ps",),
        s6_a_synchronous_server_is_an_all_reduce,
    ),
    Law("S6.adam", "also with Adam, whose moments see one mean per step", ("ps",), s6_also_for_adam),
)


NONE_SPARE = StrategyOptions(backup_workers=0)
SEEDS = range(6)
WORKERS = 5
SPARE = 2
ROUNDS = 200
MEAN_S = 0.01


def b1_without_spares_it_is_ps(lab: Lab) -> Finding:
    return _equals(lab, "ps", task_options={"batch_norm": True})


def b1_without_spares_it_is_ssgd(lab: Lab) -> Finding:
    return _equals(lab, "ssgd")


def _equals(lab: Lab, mode: str, **changes: object) -> Finding:
    """Also when workers join in another order, so that another one does each share."""
    work = {"steps": 20, "batch_sizes": (2, 3, 5), **changes}
    plan = lab.plan(strategy=NONE_SPARE, stragglers=RANDOM_SPEEDS, **work)
    own_hash = final_hash(plan, starts_at_s={0: 0.3, 1: 0.1})
    return bit_equal(own_hash, final_hash(lab.other(mode, **work)), of=f"b = 0, and {mode}")


def b2_an_update_is_the_mean_of_k_fresh_gradients(lab: Lab) -> Finding:
    """Counted from what went over the store; the ledger shows with what weight, and that nothing is lost."""
    odd = list[str]()
    updates = 0
    weighed = True
    for seed in SEEDS:
        for spare in (1, 2):
            plan = _sharing(lab, seed, spare)
            witness = Witness.of(plan.num_workers)
            done = run(plan, wrap_store=witness.wrap)
            contributors = _contributors(witness)
            updates += len(contributors)
            odd += [
                f"seed {seed}, version {version}: {sorted(ranks)}"
                for version, ranks in contributors.items()
                if len(ranks) != plan.gradients_per_update or len(set(ranks)) != len(ranks)
            ]
            weighed &= _is_fresh_and_whole(plan, done)
    return Finding(
        not odd and weighed,
        f"{updates} updates; not of K distinct workers: {odd[:3]}; each work unit once, fresh, as 1/K: "
        f"{weighed}",
    )


def _sharing(lab: Lab, seed: int, spare: int) -> Plan:
    """Five workers, and K divides the work: so every update, also the last, has K contributors."""
    options = StrategyOptions(backup_workers=spare)
    return ledger(lab.plan(num_workers=5, steps=12, seed=seed, stragglers=RANDOM_SPEEDS, strategy=options))


def _contributors(witness: Witness) -> dict[int, list[int]]:
    """Who pushed a gradient of each version."""
    read: dict[int, int] = {}
    contributors: dict[int, list[int]] = {}
    for act in witness.acts:
        if act.what == "pull":
            read[act.rank] = act.version
        elif act.what == "push":
            contributors.setdefault(read[act.rank], []).append(act.rank)
    return contributors


def _is_fresh_and_whole(plan: Plan, done: VirtualRun) -> bool:
    applied = [row for row in done.history.server if row.op == "apply"]
    each_once = sorted(row.position for row in applied) == list(range(plan.total_gradients))
    as_a_mean = bool((done.final_state()["entries"] == -1.0 / plan.gradients_per_update).all())
    return each_once and as_a_mean and all(row.staleness == 0 for row in applied)


def b3_an_update_takes_as_long_as_the_kth_fastest(lab: Lab) -> Finding:
    """Exponential step times: exactly the K-th of those drawn, and (H_N - H_b)·mean on average."""
    drawn_s = [[_exponential(rank, step) for step in range(ROUNDS)] for rank in range(WORKERS)]
    rules = [
        StragglerRule(worker=rank, delay_s=delay_s, steps=(step,))
        for rank, own in enumerate(drawn_s)
        for step, delay_s in enumerate(own)
    ]
    needed = WORKERS - SPARE
    plan = lab.plan(
        num_workers=WORKERS,
        steps=ROUNDS * needed // WORKERS,
        pace_s=0.0,
        stragglers=tuple(rules),
        strategy=StrategyOptions(backup_workers=SPARE),
    )
    # Of the last one fewer take part: no share is left for the late.
    took_ns = _rounds_ns(run(plan))[:-1]
    orders = [sorted(own[number] for own in drawn_s)[needed - 1] for number in range(len(took_ns))]
    exact = took_ns == [round(seconds * 1e9) for seconds in orders]
    spacings = range(SPARE + 1, WORKERS + 1)
    expected_s = MEAN_S * sum(1 / i for i in spacings)
    error_s = MEAN_S * math.sqrt(sum(1 / i**2 for i in spacings) / len(took_ns))
    off = (sum(took_ns) / 1e9 / len(took_ns) - expected_s) / error_s
    return Finding(
        exact and abs(off) <= 3,
        f"{len(took_ns)} updates of {needed} of {WORKERS}: each the order statistic drawn: {exact}; "
        f"mean {off:+.1f} SE from (H_N - H_b)·mean",
    )


def _exponential(rank: int, step: int) -> float:
    return -MEAN_S * math.log(1.0 - draw_uniform(23, rank, step))


def _rounds_ns(done: VirtualRun) -> list[int]:
    """How long each update took, from the one before."""
    times = {row.version: row.at_ns for row in done.history.server if row.op == "apply"}
    return [later - earlier for earlier, later in pairwise([0, *(times[v] for v in sorted(times))])]


def b4_a_persistent_straggler_slows_no_other(lab: Lab) -> Finding:
    """Time is that of the other three alone, and the straggler's samples are used all the same."""
    rules = (StragglerRule(worker=1, factor=10.0),)
    plan = ledger(lab.plan(num_workers=4, steps=30, stragglers=rules))
    done = run(plan)
    updates = -(-plan.total_gradients // 3)
    abandoned = Counter(row.rank for row in done.history.server if row.op == "abandon")
    ended = _ends_early(done, rank=1)
    entries = done.final_state()["entries"]
    ok = _same(done.elapsed_s, updates * PACE_S) and bool((entries != 0).all()) and ended
    return Finding(
        ok,
        f"{plan.total_gradients} work units in {done.elapsed_s:.3f} s, {updates} updates of {PACE_S:g} s; "
        f"abandoned by worker {dict(abandoned)}, each within a step of the others: {ended}",
    )


def _ends_early(done: VirtualRun, *, rank: int) -> bool:
    lasted: Sequence[int] = [row.lasted_ns - row.wait_ns for row in done.history.abandoned.get(rank, [])]
    return bool(lasted) and all(ns <= round(PACE_S * 1e9) for ns in lasted)


def _same(one_s: float, other_s: float) -> bool:
    return round(one_s * 1e9) == round(other_s * 1e9)


BACKUP_ONLY = ("backup",)
BACKUP_LAWS = (
    Law("B1", "without backup workers it is bitwise equal to ps", BACKUP_ONLY, b1_without_spares_it_is_ps),
    Law(
        "B1.ssgd",
        "without backup workers it is bitwise equal to ssgd",
        BACKUP_ONLY,
        b1_without_spares_it_is_ssgd,
    ),
    Law(
        "B2",
        "every update is the mean of exactly K distinct workers' gradients, none stale, and no work unit is "
        "lost",
        BACKUP_ONLY,
        b2_an_update_is_the_mean_of_k_fresh_gradients,
    ),
    Law(
        "B3",
        "an update takes as long as the K-th fastest worker; exponential times: (H_N - H_b)·mean",
        BACKUP_ONLY,
        b3_an_update_takes_as_long_as_the_kth_fastest,
    ),
    Law(
        "B4",
        "a persistent straggler slows no other, abandons its steps at once, and its samples are still used",
        BACKUP_ONLY,
        b4_a_persistent_straggler_slows_no_other,
    ),
)
