"""After which steps do LocalSGD workers average, and what is each one's weight?

Step numbers here count finished steps, so a period of 4 averages after steps
4, 8, 12 … and once more after the last one. During the first
`post_local_after` steps every step averages (post-local SGD, Lin 2018).
"""

from collections.abc import Sequence


def averages_after(finished: int, *, total: int, every: int, post_local_after: int = 0) -> bool:
    """Do the workers average once `finished` steps are done?"""
    if finished >= total or finished <= post_local_after:
        return True
    return (finished - post_local_after) % every == 0


def round_end(done: int, *, total: int, every: int, post_local_after: int = 0) -> int:
    """How many steps are finished when workers that have `done` of them average next."""
    ends = (
        finished
        for finished in range(done + 1, total)
        if averages_after(finished, total=total, every=every, post_local_after=post_local_after)
    )
    return next(ends, total)


def mean_weight(rank: int, batch_sizes: Sequence[int]) -> float:
    """What to multiply by before an unweighted mean, so that it becomes b_i / sum(b).

    Exactly 1.0 when all batches are equal, so that the common case changes no bit.
    """
    total = sum(batch_sizes)
    return batch_sizes[rank] * len(batch_sizes) / total
