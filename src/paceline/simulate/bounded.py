"""Who goes on at once, who is held, and until when, if nobody may run far ahead of the slowest?

The server of sync/admission.py as one tight loop: an event is the arrival of a
gradient, in the order of arrival (ties: who was let go earlier). The slowest
clock moves when the last worker reaches it; then whoever was held for it is
released, in (index, rank) order. A controller may let a worker go further.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

import numpy as np

from paceline.simulate.costs import ServerTimes
from paceline.simulate.durations import Steps
from paceline.simulate.prediction import Integers
from paceline.sync.dynamic_bound import Controller


@dataclass(slots=True)
class Served:
    """Updates in the order in which the server made them."""

    order: list[int] = field(default_factory=list)  # whose
    applied_ns: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)  # those that were released together with the next one

    def read_versions(self) -> Integers:
        """What a worker read after each of its updates: the version that the whole release made."""
        is_last = np.ones(len(self.order), dtype=np.bool_)
        is_last[self.inner] = False
        ends = np.flatnonzero(is_last)
        return np.repeat(ends, np.diff(ends, prepend=-1)) + 1


class BoundedServer:
    """What the server knows while it runs."""

    def __init__(
        self, own: list[Steps], times: ServerTimes, *, bound: int, steps: int, controller: Controller
    ) -> None:
        self._bound, self._steps, self._control, self._times = bound, steps, controller, times
        self._streams = [iter(s) for s in own]
        self._clocks = [0] * len(own)
        self._held: list[int] = []  # in the order in which they began to wait
        self._heap: list[tuple[int, int, int]] = []  # (when a gradient arrives, tie, whose)
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
        # The names are local because this loop is what a simulation spends its time in.
        heap, clocks, streams, held, tick = self._heap, self._clocks, self._streams, self._held, self._tick
        order, applied_ns = self.served.order, self.served.applied_ns
        steps, workers, control, is_moving = self._steps, len(clocks), self._control, self._control.extra > 0
        pushed_ns, before_ns, granted = control.pushed_ns, control.before_ns, control.granted
        apply_ns, answer_ns = self._times.apply_ns, self._times.answer_ns
        further_ns = answer_ns + self._times.round_ns
        reached = [0] * (steps + 1)  # how many workers have come to each clock
        limit, free_ns = self._bound, 0
        while heap:
            arrived_ns, _, rank = heap[0]
            clocks[rank] = clock = clocks[rank] + 1
            reached[clock] = come = reached[clock] + 1
            if is_moving:
                before_ns[rank], pushed_ns[rank] = pushed_ns[rank], arrived_ns
            if come == workers:  # the slowest clock has moved, so others may be released
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
        """Apply what is within the limit now, one after another, then answer; when that is done."""
        held, served, times, answered_ns = self._held, self.served, self._times, self._answered_ns
        waiting = [pusher, *held]  # the pusher goes on first, others in the order of their waiting
        ready = self._ready(waiting, limit)
        before, released = len(served.order), len(ready)
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
        heap, streams, tick, round_ns = self._heap, self._streams, self._tick, times.round_ns
        for rank in waiting:
            heappush(heap, (answered_ns[rank] + round_ns + next(streams[rank]), tick(), rank))
        return free_ns

    def _ready(self, waiting: list[int], limit: int) -> list[int]:
        """Whose updates are within the limit, in (index, rank) order."""
        if not self._control.extra:  # whoever is held made exactly one step too many: all are within
            pusher, *held = waiting
            return [pusher, *sorted(held)] if self._bound else sorted(waiting)
        clocks, granted = self._clocks, self._control.granted
        within = [(clocks[rank], rank) for rank in waiting if clocks[rank] <= limit + granted[rank]]
        within.sort()
        return [rank for _, rank in within]
