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

from paceline.simulate.durations import Steps, all_steps, starts_ns
from paceline.simulate.prediction import Integers, Outline, Trace
from paceline.simulate.profile import Profile
from paceline.sync.dynamic_bound import Controller


def unbounded(profile: Profile, *, steps: int, seed: int) -> Outline:
    """Nobody waits; whoever is free takes the next share, until all are handed out."""
    total, costs = steps * profile.num_workers, profile.costs
    own = all_steps(profile, seed, expected=steps + steps // 4)
    streams = [iter(s) for s in own]
    push_ns, back_ns = _travel_ns(profile)
    apply_ns, answer_ns = _ns(costs.apply_s), _ns(costs.answer_s)
    starts = starts_ns(profile).tolist()
    heap = [(starts[r] + next(streams[r]) + push_ns, r, r) for r in range(profile.num_workers)]
    heapify(heap)
    order: list[int] = []
    free_ns, free_at = 0, list[int]()  # when the server has answered
    service_ns, travel_ns = apply_ns + answer_ns, back_ns + push_ns
    for number in range(len(heap), total):
        arrived_ns, _, rank = heap[0]
        free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + service_ns
        order.append(rank)
        free_at.append(free_ns)
        heapreplace(heap, (free_ns + travel_ns + next(streams[rank]), number, rank))
    for arrived_ns, _, rank in sorted(heap):  # nothing is left to hand out
        free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + service_ns
        order.append(rank)
        free_at.append(free_ns)
    trace = Trace(np.array(order), np.array(free_at) - answer_ns)
    return _outline(profile, own, trace, np.arange(1, total + 1), samples=steps * profile.global_batch)


def bounded(
    profile: Profile, *, bound: int, steps: int, seed: int, controller: Controller | None = None
) -> Outline:
    """At most `bound` steps ahead of the slowest; a controller may let a worker go further."""
    own = all_steps(profile, seed, expected=steps)
    server = _BoundedServer(profile, own, bound, steps, controller)
    server.run()
    trace = Trace(np.array(server.order), np.array(server.applied_ns))
    return _outline(profile, own, trace, server.read_versions(), samples=steps * profile.global_batch)


class _BoundedServer:
    """What the server knows while it runs."""

    def __init__(
        self, profile: Profile, own: list[Steps], bound: int, steps: int, controller: Controller | None
    ) -> None:
        workers = profile.num_workers
        self._bound, self._steps, self._controller = bound, steps, controller
        self._reach = bound + (0 if controller is None else controller.extra)
        self._apply_ns, self._answer_ns = _ns(profile.costs.apply_s), _ns(profile.costs.answer_s)
        push_ns, back_ns = _travel_ns(profile)
        self._travel_ns = back_ns + push_ns
        self._streams = [iter(s) for s in own]
        self._clocks = [0] * workers
        starts = starts_ns(profile).tolist()
        self._heap = [(starts[r] + next(self._streams[r]) + push_ns, r, r) for r in range(workers)]
        heapify(self._heap)
        self._tick = count(workers).__next__
        self._held: list[int] = []  # in the order in which they began to wait
        self.order: list[int] = []
        self.applied_ns: list[int] = []
        self._inner: list[int] = []  # updates that were applied together with the next one

    def run(self) -> None:
        # The names are local because this loop is what a simulation spends its time in.
        heap, clocks, streams, tick = self._heap, self._clocks, self._streams, self._tick
        order, applied_ns, held = self.order, self.applied_ns, self._held
        bound, steps, controller = self._bound, self._steps, self._controller
        apply_ns, answer_ns = self._apply_ns, self._answer_ns
        further_ns = answer_ns + self._travel_ns
        low, at_low, free_ns = 0, len(clocks), 0
        while heap:
            arrived_ns, _, rank = heap[0]
            clock = clocks[rank] + 1
            clocks[rank] = clock
            ahead = clock - low
            has_moved = False
            if ahead == 1:
                at_low -= 1
                if not at_low:  # the slowest has moved, so others may be released
                    low, ahead, has_moved = low + 1, 0, True
                    at_low = clocks.count(low)
            limit = bound
            if controller is not None:
                controller.note(rank, arrived_ns, beyond=ahead - bound, slowest=clocks.index(low))
                limit += controller.granted[rank]
            if has_moved and held:
                heappop(heap)
                free_ns = self._release(self._ready(rank, low), rank, max(free_ns, arrived_ns))
                continue
            if ahead > limit:
                heappop(heap)
                held.append(rank)
                continue
            free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + apply_ns
            order.append(rank)
            applied_ns.append(free_ns)
            if clock < steps:
                heapreplace(heap, (free_ns + further_ns + next(streams[rank]), tick(), rank))
                free_ns += answer_ns
            else:
                heappop(heap)

    def _ready(self, pusher: int, low: int) -> list[int]:
        """Who is released now that the slowest are at `low`, in (index, rank) order."""
        if self._controller is not None:
            limits = [low + self._bound + granted for granted in self._controller.granted]
            within = [(self._clocks[r], r) for r in (pusher, *self._held) if self._clocks[r] <= limits[r]]
            return [rank for _, rank in sorted(within)]
        # With a fixed bound, whoever is held made exactly one step too many: now all are within it.
        if self._bound == 0:
            return sorted([pusher, *self._held])
        return [pusher, *sorted(self._held)]

    def _release(self, ready: list[int], pusher: int, free_ns: int) -> int:
        """Apply these updates, one after another, then answer; when that is done."""
        clocks, heap, streams, tick, held = self._clocks, self._heap, self._streams, self._tick, self._held
        order, apply_ns, answer_ns = self.order, self._apply_ns, self._answer_ns
        self._inner.extend(range(len(order), len(order) + len(ready) - 1))
        order += ready
        self.applied_ns.extend(islice(count(free_ns + apply_ns, apply_ns), len(ready)))
        free_ns += apply_ns * len(ready)
        is_near_the_end = clocks[pusher] + self._reach >= self._steps
        going = [rank for rank in ready if clocks[rank] < self._steps] if is_near_the_end else ready
        further_ns = count(free_ns + answer_ns + self._travel_ns, answer_ns)
        arrives_ns = dict(zip(going, further_ns, strict=False))
        for rank in (pusher, *held):  # the pusher goes on at once, others in the order of their waiting
            if rank in arrives_ns:
                heappush(heap, (arrives_ns[rank] + next(streams[rank]), tick(), rank))
        if len(ready) > len(held):
            held.clear()
        else:
            held[:] = [rank for rank in held if rank not in ready]
        return free_ns + answer_ns * len(going)

    def read_versions(self) -> Integers:
        """What a worker read after each of its updates: the version that the whole release made."""
        is_last = np.ones(len(self.order), dtype=np.bool_)
        is_last[self._inner] = False
        ends = np.flatnonzero(is_last)
        return ends[np.searchsorted(ends, np.arange(len(self.order)))] + 1


def _travel_ns(profile: Profile) -> tuple[int, int]:
    """(a gradient's way to the server, an answer's way back until the worker computes)."""
    costs, size = profile.costs, profile.parameter_bytes
    return _ns(costs.push.transfer_s(size)), _ns(costs.pull.transfer_s(size) + costs.wake_up_s)


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
    profile: Profile, own: Sequence[Steps], trace: Trace, read_after: Integers, *, samples: int
) -> Outline:
    workers, starts = profile.num_workers, starts_ns(profile)
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


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
