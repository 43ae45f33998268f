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
    heap = [
        ((share + 1) * cost, worker) for worker, (share, cost) in enumerate(zip(shares, costs, strict=True))
    ]
    heapify(heap)
    for _ in range(total - sum(shares)):
        _, worker = heap[0]
        shares[worker] += 1
        heapreplace(heap, ((shares[worker] + 1) * costs[worker], worker))
    return tuple(shares)


def _whole_shares(total: int, speeds: Sequence[float], least: int) -> list[int]:
    """What is due to each worker by its speed, rounded down; who is due less than the least gets that."""
    speed = sum(speeds)
    due = [total * own / speed for own in speeds]
    if min(due) >= least:
        return [int(own) for own in due]
    enough = [worker for worker, own in enumerate(due) if own >= least]
    shares = [least] * len(speeds)
    if enough:
        rest = total - least * (len(speeds) - len(enough))
        more = _whole_shares(rest, [speeds[worker] for worker in enough], least)
        for worker, own in zip(enough, more, strict=True):
            shares[worker] = own
    return shares
