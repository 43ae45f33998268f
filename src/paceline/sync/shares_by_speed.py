"""How many shards does each worker do, if some are slower? In proportion to how fast they were.

Shards are dealt out anew only when a step would become clearly shorter, and not
right after the last time: speeds that come and go lead to nothing. A worker that
is so slow that it gets none is tried with one shard now and then, less and less
often, so that it can come back. What comes out of a step depends on the
shards, never on who did them. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.sync.deal import deal

WORTH = 0.15  # the part by which a step must become shorter; of many workers one is worth less
RESTING_STEPS = 4  # after a change
NEWEST = 5  # times of a worker that count
FIRST_TRY, RARELY = 16, 256  # steps until a worker without shards is tried: twice as many each time, at most


@dataclass(frozen=True, slots=True)
class Dealt:
    """The shards were dealt out anew."""

    counts: tuple[int, ...]  # by worker
    reason: str


def shards_between(rank: int, counts: Sequence[int]) -> range:
    """Neighbouring shards, so many as the worker has, behind those of the ranks before it."""
    first = sum(counts[:rank])
    return range(first, first + counts[rank])


def equal_counts(shards: int, workers: int) -> tuple[int, ...]:
    return tuple((rank + 1) * shards // workers - rank * shards // workers for rank in range(workers))


class SharesBySpeed:
    """Everybody who heard the same has dealt the same."""

    def __init__(self, shards: int, workers: int) -> None:
        self._shards, self._workers = shards, workers
        self.counts = equal_counts(shards, workers)  # for the next step
        self._settled = self.counts  # without those that are only tried
        self._times: list[list[float]] = [[] for _ in range(workers)]
        self._rested = 0
        self._tried_in = [FIRST_TRY] * workers  # steps until a worker without shards is tried
        self._pause = [FIRST_TRY] * workers

    def heard(self, seconds: Sequence[float | None]) -> Dealt | None:
        """One step: seconds for a shard, by worker; None: it had none."""
        for worker, own_s in enumerate(seconds):
            if own_s is not None:
                self._take(worker, own_s)
        self._rested += 1
        dealt = None
        if self._rested >= RESTING_STEPS and all(self._times):
            dealt = self._deal()
        self.counts = self._with_trials()
        return dealt

    def _take(self, worker: int, seconds: float) -> None:
        if self._settled[worker] == 0:  # it was tried: what was before counts no more
            self._times[worker].clear()
        self._times[worker] = [*self._times[worker], seconds][-NEWEST:]

    def _deal(self) -> Dealt | None:
        usual_s = [median(times) for times in self._times]
        counts = deal(self._shards, usual_s, least=0)
        before_s, after_s = _step_s(self._settled, usual_s), _step_s(counts, usual_s)
        if after_s > before_s * (1 - min(WORTH, 0.6 / self._workers)):
            return None
        for worker, (was, now) in enumerate(zip(self._settled, counts, strict=True)):
            if was and now:
                self._pause[worker] = FIRST_TRY
            if now == 0:
                self._tried_in[worker] = self._pause[worker]
        self._settled, self._rested = counts, 0
        by_worker = ", ".join(f"{own_s * 1e3:.1f}" for own_s in usual_s)
        reason = (
            f"a shard takes {by_worker} ms by worker: a step takes {after_s * 1e3:.1f} ms"
            f" instead of {before_s * 1e3:.1f} ms"
        )
        return Dealt(counts, reason)

    def _with_trials(self) -> tuple[int, ...]:
        """One shard for whoever is due to be tried, from whoever has most."""
        counts = list(self._settled)
        for worker in range(self._workers):
            if self._settled[worker]:
                continue
            self._tried_in[worker] -= 1
            if self._tried_in[worker] > 0:
                continue
            self._pause[worker] = min(RARELY, 2 * self._pause[worker])
            self._tried_in[worker] = self._pause[worker]
            counts[counts.index(max(counts))] -= 1
            counts[worker] += 1
        return tuple(counts)


def _step_s(counts: Sequence[int], seconds: Sequence[float]) -> float:
    return max(count * own_s for count, own_s in zip(counts, seconds, strict=True))
