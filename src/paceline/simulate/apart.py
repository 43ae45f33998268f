"""In which order do gradients reach a server, and when, if nobody meets? Event by event.

An event is the arrival of a gradient. The server takes them one at a time, in
the order of arrival (ties: who began earlier), by the rules of
sync/admission.py and sync/assignment.py. With costs of zero this is what
worker/virtual.py does, to the nanosecond.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, islice

import numpy as np

from paceline.simulate.bounded import BoundedServer
from paceline.simulate.costs import server_times
from paceline.simulate.durations import Steps, all_steps, starts_ns
from paceline.simulate.prediction import Integers, Outline, Trace
from paceline.simulate.profile import Profile
from paceline.sync.dynamic_bound import Controller


def unbounded(profile: Profile, *, steps: int, seed: int) -> Outline:
    """Nobody waits; whoever is free takes the next share, until all are handed out."""
    total, times = steps * profile.num_workers, server_times(profile.costs, profile.parameter_bytes)
    own = all_steps(profile, seed, expected=steps + steps // 4)
    streams = [iter(s) for s in own]
    starts = starts_ns(profile).tolist()
    heap = [(starts[r] + next(streams[r]) + times.push_ns, r, r) for r in range(profile.num_workers)]
    heapify(heap)
    order: list[int] = []
    free_ns, free_at = 0, list[int]()  # when the server has answered
    service_ns, round_ns = times.apply_ns + times.answer_ns, times.round_ns
    for number in range(len(heap), total):
        arrived_ns, _, rank = heap[0]
        free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + service_ns
        order.append(rank)
        free_at.append(free_ns)
        heapreplace(heap, (free_ns + round_ns + next(streams[rank]), number, rank))
    for arrived_ns, _, rank in sorted(heap):  # nothing is left to hand out
        free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + service_ns
        order.append(rank)
        free_at.append(free_ns)
    trace = Trace(_array(order), _array(free_at) - times.answer_ns)
    return _outline(profile, own, trace, np.arange(1, total + 1), samples=steps * profile.global_batch)


def blocks(profile: Profile, *, every: int, steps: int, seed: int) -> Outline:
    """Nobody waits; whoever is free takes the next `every` shares, and only then meets the server."""
    total, times = steps * profile.num_workers, server_times(profile.costs, profile.parameter_bytes)
    own = all_steps(profile, seed, expected=steps + steps // 4)
    streams = [iter(s) for s in own]
    left = count(0, every)  # the first share of each block

    def takes_ns(rank: int) -> tuple[int, int]:
        """(how long this worker's next block takes, how many shares it has); none when all are handed out."""
        size = max(0, min(every, total - next(left)))
        return sum(islice(streams[rank], size)) + size * times.apply_ns, size

    heap, free_ns = list[tuple[int, int, int, int]](), 0
    for rank, start_ns in enumerate(starts_ns(profile).tolist()):
        block_ns, size = takes_ns(rank)
        if size:
            heappush(heap, (start_ns + block_ns + times.push_ns, len(heap), rank, size))
    order, applied, sizes = list[int](), list[int](), list[int]()
    while heap:
        arrived_ns, _, rank, size = heappop(heap)
        order.append(rank)
        sizes.append(size)
        applied.append(max(arrived_ns, free_ns) + times.apply_ns)
        free_ns = applied[-1] + times.answer_ns
        block_ns, size = takes_ns(rank)
        if size:
            heappush(heap, (free_ns + times.round_ns + block_ns, total + len(order), rank, size))
    trace = Trace(_array(order), _array(applied))
    done = np.bincount(trace.ranks, weights=sizes, minlength=profile.num_workers).astype(np.int64)
    read_after, samples = np.arange(1, len(order) + 1), steps * profile.global_batch
    return _outline(profile, own, trace, read_after, samples=samples, done=done)


def bounded(
    profile: Profile, *, bound: int, steps: int, seed: int, controller: Controller | None = None
) -> Outline:
    """At most `bound` steps ahead of the slowest; a controller may let a worker go further."""
    own = all_steps(profile, seed, expected=steps)
    controller = controller or Controller(0, profile.num_workers)
    times = server_times(profile.costs, profile.parameter_bytes)
    server = BoundedServer(own, times, bound=bound, steps=steps, controller=controller)
    served = server.run(starts_ns(profile).tolist())
    trace = Trace(_array(served.order), _array(served.applied_ns))
    return _outline(profile, own, trace, served.read_versions(), samples=steps * profile.global_batch)


def _staleness(trace: Trace, read_after: Integers, starts: Integers) -> Integers:
    """Updates between what a worker read, right after its update before, and its update."""
    stale = np.empty(len(trace.ranks), dtype=np.int64)
    for rank, start_ns in enumerate(starts.tolist()):
        mine = np.flatnonzero(trace.ranks == rank)
        read = np.roll(read_after[mine], 1)
        read[:1] = np.searchsorted(trace.at_ns, start_ns) if start_ns else 0
        stale[mine] = mine - read
    return stale


def _outline(
    profile: Profile,
    own: Sequence[Steps],
    trace: Trace,
    read_after: Integers,
    *,
    samples: int,
    done: Integers | None = None,
) -> Outline:
    """`done` gradients of each worker; None: as many as updates."""
    workers, starts = profile.num_workers, starts_ns(profile)
    if done is None:
        done = np.bincount(trace.ranks, minlength=workers)
    ends = np.zeros(workers, dtype=np.int64)
    np.maximum.at(ends, trace.ranks, trace.at_ns)
    compute_ns = sum(int(own[r].first(int(done[r])).sum()) for r in range(workers))
    active_ns = int(np.where(done > 0, ends - starts, 0).sum())
    counts = np.bincount(_staleness(trace, read_after, starts))
    return Outline(
        total_ns=int(trace.at_ns[-1] - starts.min()),
        compute_ns=compute_ns,
        wait_ns=active_ns - compute_ns,
        steps=tuple(done.tolist()),
        samples=samples,
        syncs=len(trace.ranks),
        bytes_each_way=profile.parameter_bytes * len(trace.ranks),
        staleness={value: times for value, times in enumerate(counts.tolist()) if times},
        trace=trace,
    )


def _array(numbers: list[int]) -> Integers:
    return np.fromiter(numbers, np.int64, len(numbers))  # three times as fast as np.array
