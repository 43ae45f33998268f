"""S: synchronous SGD and the collectives under it."""

import threading
from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from paceline.clock import SystemClock
from paceline.ids import Rank
from paceline.laws.lab import Lab, distance, run
from paceline.laws.law import Finding, Law, within
from paceline.plan.plan import OptimizerChoice
from paceline.transport.ports import Traffic
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_collective import SEMAPHORES, ShmCollective, mean_in_place
from paceline.worker.wiring import build_task, set_up_torch

SIZE = 960  # divides by N * 16 for every N tried, so that pieces are equal
WORLDS = (2, 3, 4, 5)


def s1_many_small_batches_are_one_large(lab: Lab) -> Finding:
    many = run(lab.plan(num_workers=4, batch_sizes=(3,) * 4))
    one = run(lab.other("single", batch_sizes=(12,)))
    return within(distance(many, one), 1e-12)


def s2_unequal_batches_are_weighted(lab: Lab) -> Finding:
    uneven = run(lab.plan(num_workers=2, batch_sizes=(2, 6)))
    one = run(lab.other("single", batch_sizes=(8,)))
    return within(distance(uneven, one), 1e-12)


def s2_unweighted_would_be_wrong(lab: Lab) -> Finding:
    plan = lab.plan(num_workers=2, batch_sizes=(2, 6))
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model, samples = task.model(), task.samples()

    def gradient(first: int, end: int) -> Tensor:
        model.zero_grad()
        batch = samples.batch(torch.arange(first, end).numpy())
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])

    union, small, large = gradient(0, 8), gradient(0, 2), gradient(2, 8)
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
        forward, backward = [v.clone() for v in vectors], [v.clone() for v in reversed(vectors)]
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
    dice = torch.Generator().manual_seed(world)
    return [torch.randn(SIZE, generator=dice, dtype=torch.float32) for _ in range(world)]


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
    Law("S3", "after an all-reduce every rank holds the same bits", SYNC, s3_all_ranks_end_bit_equal),
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
