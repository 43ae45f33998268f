"""Simulator of the synchronous modes: single, ssgd, ddp, ps, localsgd, diloco and fedavg.

Between two synchronizations workers are independent, so a run is the sum, over its
synchronizations, of the slowest worker's time: whole arrays at once, no event queue.
FedAvg draws its clients with sync/averaging.py, as the workers do.
"""

import numpy as np

from paceline.plan.catalog import Channel
from paceline.simulate.durations import Nanoseconds, all_steps, matrix, starts_ns
from paceline.simulate.prediction import Integers, Outline, Trace, ring_bytes
from paceline.simulate.profile import Profile, in_ns
from paceline.simulate.strategy_models import FederatedRounds, LocalSgd, OuterSgd, Synchronous
from paceline.sync.averaging import Rounds, averages_after, clients_per_round, starts_after


def single_worker(profile: Profile, *, steps: int, seed: int) -> Outline:
    """Worker 0 computes the gradients of all, one after another."""
    gradients = steps * profile.num_workers
    own = all_steps(profile, seed, expected=gradients)[0].first(gradients)
    ends = np.cumsum(own + in_ns(profile.costs.apply_s))
    return Outline(
        total_ns=int(ends[-1]),
        compute_ns=int(own.sum()),
        wait_ns=0,
        steps=(gradients,),
        samples=steps * profile.global_batch,
        syncs=0,
        bytes_each_way=0,
        trace=Trace(np.zeros(gradients, dtype=np.int64), ends),
    )


def synchronous(profile: Profile, model: Synchronous, *, steps: int, seed: int) -> Outline:
    costs = profile.costs
    workers = profile.num_workers
    compute = matrix(profile, seed, steps)
    if model.channel is Channel.STORE:
        answers_ns = in_ns(costs.answer_s) * np.arange(1, workers + 1)  # one worker after another
        back_ns = answers_ns + in_ns(costs.pull.transfer_s(profile.parameter_bytes) + profile.all_wake_s)
        sync_ns = in_ns(costs.push.transfer_s(profile.parameter_bytes) + costs.apply_s)
        per_sync = profile.parameter_bytes
    else:
        link = costs.torch if model.channel is Channel.TORCH else costs.collective
        back_ns = np.zeros(workers, dtype=np.int64)
        sync_ns = in_ns(link.transfer_s(ring_bytes(profile)) + profile.all_wake_s + costs.apply_s)
        per_sync = ring_bytes(profile)
    ends, wait_ns = _synchronize(compute, starts_ns(profile), back_ns, sync_ns)
    if model.channel is Channel.STORE:  # a worker's wait includes the server's own time
        wait_ns += int((steps - 1) * (back_ns + sync_ns).sum())
    return Outline(
        total_ns=int(ends[-1]) - int(starts_ns(profile).min()),
        compute_ns=int(compute.sum()),
        wait_ns=wait_ns,
        steps=(steps,) * workers,
        samples=steps * profile.global_batch,
        syncs=steps,
        bytes_each_way=per_sync * workers * steps,
        staleness={0: steps * workers} if model.channel is Channel.STORE else None,
        trace=_all_workers(ends, workers),
    )


def local_sgd(profile: Profile, model: LocalSgd, *, steps: int, seed: int) -> Outline:
    every = model.every
    after = model.post_local_after
    averaged = [
        averages_after(step, total=steps, every=every, post_local_after=after) for step in range(1, steps + 1)
    ]
    return _periodic(profile, np.array(averaged, dtype=np.int64), parts=1, seed=seed)


def outer_sgd(profile: Profile, model: OuterSgd, *, steps: int, seed: int) -> Outline:
    """Each fragment is averaged in its turn, and all workers wait for it; at the end all fragments are."""
    fragments = model.fragments
    started = [
        sum(starts_after(step, f, every=model.every, fragments=fragments) for f in range(fragments))
        for step in range(1, steps)
    ]
    averaged = np.array([*started, fragments], dtype=np.int64)
    return _periodic(profile, averaged, parts=fragments, seed=seed)


def _periodic(profile: Profile, averaged: Integers, *, parts: int, seed: int) -> Outline:
    """After each step `averaged` of the `parts` of the parameters are averaged, one after another."""
    costs = profile.costs
    workers = profile.num_workers
    steps = len(averaged)
    compute = matrix(profile, seed, steps)
    syncs = np.flatnonzero(averaged)
    begins = np.append(0, syncs[:-1] + 1)
    rounds = np.add.reduceat(compute + in_ns(costs.apply_s), begins, axis=1)
    each_s = costs.collective.transfer_s(ring_bytes(profile) / parts)
    sync_ns = np.rint((averaged[syncs] * each_s + profile.all_wake_s) * 1e9).astype(np.int64)
    ends, wait_ns = _synchronize(rounds, starts_ns(profile), np.zeros(workers, dtype=np.int64), sync_ns)
    return Outline(
        total_ns=int(ends[-1]) - int(starts_ns(profile).min()),
        compute_ns=int(compute.sum()),
        wait_ns=wait_ns,
        steps=(steps,) * workers,
        samples=steps * profile.global_batch,
        syncs=len(syncs),
        bytes_each_way=ring_bytes(profile) * workers * int(averaged.sum()) // parts,
        trace=_all_workers(ends, workers),
    )


def _synchronize(
    rounds: Nanoseconds, starts: Nanoseconds, back_ns: Nanoseconds, sync_ns: int | Nanoseconds
) -> tuple[Nanoseconds, int]:
    """(the end of each synchronization, the total time that workers waited for the slowest)."""
    since = rounds + back_ns[:, None]  # arrival, counted from the previous synchronization
    since[:, 0] = rounds[:, 0] + starts
    slowest = since.max(axis=0)
    return np.cumsum(slowest + sync_ns), int((slowest - since).sum())


def _all_workers(ends: Nanoseconds, workers: int) -> Trace:
    return Trace(np.tile(np.arange(workers), len(ends)), np.repeat(ends, workers))


def federated_rounds(profile: Profile, model: FederatedRounds, *, steps: int, seed: int) -> Outline:
    workers = profile.num_workers
    costs = profile.costs
    compute = matrix(profile, seed, steps)
    sync_ns = in_ns(costs.collective.transfer_s(ring_bytes(profile)) + profile.all_wake_s)
    ends, clients = _ends(profile, model, compute, seed, sync_ns)
    starts = starts_ns(profile)
    busy_ns = int(compute.sum()) + in_ns(costs.apply_s) * compute.size
    syncs_ns = len(ends) * sync_ns
    return Outline(
        total_ns=ends[-1] - int(starts.min()),
        compute_ns=int(compute.sum()),
        wait_ns=workers * (ends[-1] - syncs_ns) - int(starts.sum()) - busy_ns,
        steps=(steps,) * workers,
        samples=steps * profile.global_batch,
        syncs=len(ends),
        bytes_each_way=ring_bytes(profile) * workers * len(ends),
        trace=Trace(np.concatenate(clients), np.repeat(ends, [len(drawn) for drawn in clients])),
    )


def _ends(
    profile: Profile, model: FederatedRounds, compute: Nanoseconds, seed: int, sync_ns: int
) -> tuple[list[int], list[Nanoseconds]]:
    """(the end of each round, the clients drawn for it)."""
    workers, steps = compute.shape
    done_by = np.pad(np.cumsum(compute + in_ns(profile.costs.apply_s), axis=1), ((0, 0), (1, 0)))
    count = clients_per_round(model.part, workers)
    draws = Rounds(seed=seed, num_workers=workers, steps=steps, every=model.every, count=count)
    ready_ns = starts_ns(profile).copy()  # all workers take part in every synchronization
    ends = list[int]()
    clients = list[Nanoseconds]()
    while drawn := draws.current():
        for rank, more in drawn.items():
            done = draws.done[rank]
            ready_ns[rank] += done_by[rank, done + more] - done_by[rank, done]
        ends.append(int(ready_ns.max()) + sync_ns)
        clients.append(np.array(list(drawn)))
        ready_ns[:] = ends[-1]
        draws.finish()
    return ends, clients
