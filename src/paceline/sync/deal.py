"""How is work dealt out so that the last worker to finish finishes as early as possible?

Unit by unit, each to whoever would be done with it first. That is the best
there is for equal units (and d'Hondt's way of giving out seats); all but the
last few units follow at once from the workers' speeds.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace

_SHORTEST_S = 1e-12  # a worker whose work takes no time is still only so fast


def deal(total: int, seconds: Sequence[float], *, least: int = 1) -> tuple[int, ...]:
    """Units by worker, `total` in all and at least `least` each; `seconds` is what one unit takes each."""
    workers = len(seconds)
    assert total >= least * workers, "there is enough to give everybody the least"
    if total == least * workers:
        return (least,) * workers
    costs = seconds if min(seconds) >= _SHORTEST_S else [max(cost, _SHORTEST_S) for cost in seconds]
    shares = _whole_shares(total, [1 / cost for cost in costs], least)
    heap = [((shares[worker] + 1) * costs[worker], worker) for worker in range(workers)]
    heapify(heap)
    for _ in range(total - sum(shares)):
        _, worker = heap[0]
        shares[worker] += 1
        heapreplace(heap, ((shares[worker] + 1) * costs[worker], worker))
    return tuple(shares)


def _whole_shares(total: int, speeds: Sequence[float], least: int) -> list[int]:
    """What is due to each worker by its speed, rounded down; who is due less than the least gets that."""
    shares = [least] * len(speeds)
    by_speed: Sequence[int] = range(len(speeds))
    while by_speed:
        rest = total - least * (len(speeds) - len(by_speed))
        speed = sum([speeds[worker] for worker in by_speed])
        due = [rest * speeds[worker] / speed for worker in by_speed]
        if min(due) >= least:
            for worker, mine in zip(by_speed, due, strict=True):
                shares[worker] = int(mine)
            break
        by_speed = [worker for worker, mine in zip(by_speed, due, strict=True) if mine >= least]
    return shares
