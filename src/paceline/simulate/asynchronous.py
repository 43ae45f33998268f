"""Discrete-event simulator of the asynchronous modes: asgd, ssp, dssp and easgd.

An event is the arrival of a gradient. The server handles them one at a time, in the
order of arrival (ties: the worker that began earlier), by the rules of
sync/admission.py and sync/assignment.py. With zero costs it equals
worker/entry/virtual.py, to the nanosecond.

`BoundedServer` is the server of sync/admission.py as one tight loop. The slowest
clock moves when the last worker reaches it; then the workers held for it are
released, in (index, rank) order. A controller may let a worker run further ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, islice

import numpy as np

from paceline.simulate.durations import Steps, all_steps, starts_ns
from paceline.simulate.prediction import Integers, Outline, Trace
from paceline.simulate.profile import Profile, ServerTimes, server_times
from paceline.sync.admission import BoundController


@dataclass(slots=True)
class Served:
    """Updates in the order in which the server made them."""

    order: list[int] = field(default_factory=list)  # the rank of each update
    applied_ns: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)  # updates that were released together with the next one

    def read_versions(self) -> Integers:
        """The version that a worker reads after each update: the last one of the whole release."""
        is_last = np.ones(len(self.order), dtype=np.bool_)
        is_last[self.inner] = False
        ends = np.flatnonzero(is_last)
        return np.repeat(ends, np.diff(ends, prepend=-1)) + 1


class BoundedServer:
    """The state of the simulated server."""

    def __init__(
        self, own: list[Steps], times: ServerTimes, *, bound: int, steps: int, controller: BoundController
    ) -> None:
        self._bound = bound
        self._steps = steps
        self._control = controller
        self._times = times
        self._streams = [iter(s) for s in own]
        self._clocks = [0] * len(own)
        self._held: list[int] = []  # in the order in which they began to wait
        self._heap: list[tuple[int, int, int]] = []  # (arrival of a gradient, tie breaker, rank)
        self._tick = count().__next__
        self._answered_ns = [0] * len(own)
        self.served = Served()

    def run(self, starts_ns: list[int]) -> Served:
        for rank, start_ns in enumerate(starts_ns):
            arrives_ns = start_ns + next(self._streams[rank]) + self._times.push_ns
            self._heap.append((arrives_ns, self._tick(), rank))
        heapify(self._heap)
        self._serve()
        return self.served

    def _serve(self) -> None:
        # Local names: a simulation spends its time in this loop.
        heap = self._heap
        clocks = self._clocks
        streams = self._streams
        held = self._held
        tick = self._tick
        order = self.served.order
        applied_ns = self.served.applied_ns
        steps = self._steps
        workers = len(clocks)
        control = self._control
        is_moving = self._control.extra > 0
        pushed_ns = control.pushed_ns
        before_ns = control.before_ns
        granted = control.granted
        apply_ns = self._times.apply_ns
        answer_ns = self._times.answer_ns
        further_ns = answer_ns + self._times.round_ns
        reached = [0] * (steps + 1)  # how many workers have reached each clock
        limit = self._bound
        free_ns = 0
        while heap:
            arrived_ns, _, rank = heap[0]
            clocks[rank] = clock = clocks[rank] + 1
            reached[clock] = arrived = reached[clock] + 1
            if is_moving:
                before_ns[rank] = pushed_ns[rank]
                pushed_ns[rank] = arrived_ns
            if arrived == workers:  # the slowest clock has moved, so others may be released
                limit += 1
                granted[rank] = 0
                if held:
                    heappop(heap)
                    free_ns = self._release(rank, limit, max(free_ns, arrived_ns))
                    continue
            elif clock > limit and (
                not is_moving
                or clock - limit > (granted[rank] or control.grant(rank, clocks.index(limit - self._bound)))
            ):
                held.append(rank)
                heappop(heap)
                continue
            elif is_moving and clock <= limit:
                granted[rank] = 0
            free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + apply_ns
            order.append(rank)
            applied_ns.append(free_ns)
            if clock < steps:
                heapreplace(heap, (free_ns + further_ns + next(streams[rank]), tick(), rank))
                free_ns += answer_ns
            else:
                heappop(heap)

    def _release(self, pusher: int, limit: int, free_ns: int) -> int:
        """Apply the updates within the limit, one after another, then answer; the time when that is done."""
        held = self._held
        served = self.served
        times = self._times
        answered_ns = self._answered_ns
        waiting = [pusher, *held]  # the pusher continues first, others in the order of their waiting
        ready = self._ready(waiting, limit)
        before = len(served.order)
        released = len(ready)
        served.order += ready
        served.inner += range(before, before + released - 1)
        if apply_ns := times.apply_ns:
            served.applied_ns += range(free_ns + apply_ns, free_ns + apply_ns * released + 1, apply_ns)
            free_ns += apply_ns * released
        else:
            served.applied_ns += [free_ns] * released
        held[:] = [] if released == len(waiting) else [rank for rank in held if rank not in ready]
        if limit + self._control.extra >= self._steps:  # some may have done all their work
            ready = [rank for rank in ready if self._clocks[rank] < self._steps]
        for rank in ready:
            free_ns += times.answer_ns
            answered_ns[rank] = free_ns
        if len(ready) < len(waiting):
            waiting = [rank for rank in waiting if rank in ready]
        heap = self._heap
        streams = self._streams
        tick = self._tick
        round_ns = times.round_ns
        for rank in waiting:
            heappush(heap, (answered_ns[rank] + round_ns + next(streams[rank]), tick(), rank))
        return free_ns

    def _ready(self, waiting: list[int], limit: int) -> list[int]:
        """The ranks whose updates are within the limit, in (index, rank) order."""
        if not self._control.extra:  # each held worker is exactly one step beyond: all are within now
            pusher, *held = waiting
            return [pusher, *sorted(held)] if self._bound else sorted(waiting)
        clocks = self._clocks
        granted = self._control.granted
        within = [(clocks[rank], rank) for rank in waiting if clocks[rank] <= limit + granted[rank]]
        within.sort()
        return [rank for _, rank in within]


def unbounded(profile: Profile, *, steps: int, seed: int) -> Outline:
    """asgd: no worker waits; a free worker takes the next share, until none is left."""
    total = steps * profile.num_workers
    times = server_times(profile.costs, profile.parameter_bytes)
    own = all_steps(profile, seed, expected=steps + steps // 4)
    streams = [iter(s) for s in own]
    starts = starts_ns(profile).tolist()
    heap = [(starts[r] + next(streams[r]) + times.push_ns, r, r) for r in range(profile.num_workers)]
    heapify(heap)
    order: list[int] = []
    free_ns = 0
    free_at = list[int]()  # when the server has answered each update
    service_ns = times.apply_ns + times.answer_ns
    round_ns = times.round_ns
    for number in range(len(heap), total):
        arrived_ns, _, rank = heap[0]
        free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + service_ns
        order.append(rank)
        free_at.append(free_ns)
        heapreplace(heap, (free_ns + round_ns + next(streams[rank]), number, rank))
    for arrived_ns, _, rank in sorted(heap):  # no share is left to assign
        free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + service_ns
        order.append(rank)
        free_at.append(free_ns)
    trace = Trace(_array(order), _array(free_at) - times.answer_ns)
    return _outline(profile, own, trace, np.arange(1, total + 1), samples=steps * profile.global_batch)


def elastic_averaging(profile: Profile, *, every: int, steps: int, seed: int) -> Outline:
    """easgd: no worker waits; a free worker takes the next `every` shares, then exchanges with the server."""
    total = steps * profile.num_workers
    times = server_times(profile.costs, profile.parameter_bytes)
    own = all_steps(profile, seed, expected=steps + steps // 4)
    streams = [iter(s) for s in own]
    left = count(0, every)  # the first share of each block

    def takes_ns(rank: int) -> tuple[int, int]:
        """(time of this worker's next block, its number of shares); 0 shares when none is left."""
        size = max(0, min(every, total - next(left)))
        return sum(islice(streams[rank], size)) + size * times.apply_ns, size

    heap = list[tuple[int, int, int, int]]()
    free_ns = 0
    for rank, start_ns in enumerate(starts_ns(profile).tolist()):
        block_ns, size = takes_ns(rank)
        if size:
            heappush(heap, (start_ns + block_ns + times.push_ns, len(heap), rank, size))
    order = list[int]()
    applied = list[int]()
    sizes = list[int]()
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
    read_after = np.arange(1, len(order) + 1)
    samples = steps * profile.global_batch
    return _outline(profile, own, trace, read_after, samples=samples, done=done)


def bounded(
    profile: Profile, *, bound: int, steps: int, seed: int, controller: BoundController | None = None
) -> Outline:
    """ssp and dssp: at most `bound` steps ahead of the slowest; a controller may grant more."""
    own = all_steps(profile, seed, expected=steps)
    controller = controller or BoundController(0, profile.num_workers)
    times = server_times(profile.costs, profile.parameter_bytes)
    server = BoundedServer(own, times, bound=bound, steps=steps, controller=controller)
    served = server.run(starts_ns(profile).tolist())
    trace = Trace(_array(served.order), _array(served.applied_ns))
    return _outline(profile, own, trace, served.read_versions(), samples=steps * profile.global_batch)


def _staleness(trace: Trace, read_after: Integers, starts: Integers) -> Integers:
    """The number of updates between a worker's read, right after its previous update, and its update."""
    stale = np.empty(len(trace.ranks), dtype=np.int64)
    for rank, start_ns in enumerate(starts.tolist()):
        own = np.flatnonzero(trace.ranks == rank)
        read = np.roll(read_after[own], 1)
        read[:1] = np.searchsorted(trace.at_ns, start_ns) if start_ns else 0
        stale[own] = own - read
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
    """`done`: gradients of each worker; None: as many as updates."""
    workers = profile.num_workers
    starts = starts_ns(profile)
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
