"""How long does it take when the work is shared out by measured speed? By the very policy of real runs.

Between two decisions nothing changes, so a whole stretch of steps, or a round
of local steps, is computed at once. A step of fewer samples than planned takes
proportionally less, but for its delay.
"""

import numpy as np

from paceline.simulate.costs import in_ns
from paceline.simulate.durations import Nanoseconds, all_steps, starts_ns
from paceline.simulate.prediction import Outline, Trace, ring_bytes
from paceline.simulate.profile import Profile
from paceline.sync.adapt import KEPT, decide, first_state, next_decision
from paceline.sync.setting import Allowed, Terms, Way


def adaptive(profile: Profile, *, allowed: Allowed, period: int, steps: int, seed: int) -> Outline:
    run = _Run(profile, Terms(allowed=allowed, batch_sizes=profile.batch_sizes, period=period), steps, seed)
    while run.done < steps:
        run.go_on()
    workers, ends = profile.num_workers, np.concatenate(run.ends_ns)
    return Outline(
        total_ns=int(ends[-1] - starts_ns(profile).min()),
        compute_ns=run.compute_ns,
        wait_ns=run.wait_ns,
        steps=tuple(run.made),
        samples=steps * profile.global_batch,
        syncs=len(ends),
        bytes_each_way=ring_bytes(profile) * workers * len(ends),
        trace=Trace(np.tile(np.arange(workers), len(ends)), np.repeat(ends, workers)),
    )


class _Run:
    """Where a simulated run stands."""

    def __init__(self, profile: Profile, terms: Terms, steps: int, seed: int) -> None:
        costs, workers = profile.costs, profile.num_workers
        self._profile, self._terms, self._steps = profile, terms, steps
        self._own = all_steps(profile, seed, expected=steps)
        self._state = first_state(terms)
        self._latest: list[list[float]] = [[] for _ in range(workers)]  # seconds per sample
        self._ready_ns = starts_ns(profile)
        self._exchange_ns = in_ns(costs.collective.transfer_s(ring_bytes(profile)) + profile.all_wake_s)
        self._apply_ns = in_ns(costs.apply_s)
        self.done = 0  # of the run's steps
        self.made = [0] * workers  # steps of each worker
        self.ends_ns: list[Nanoseconds] = []  # of the meetings
        self.compute_ns = self.wait_ns = 0

    def go_on(self) -> None:
        """To the next meeting after which something may change."""
        due = next_decision(self.done)
        if self._state.setting.way is Way.LOCAL_STEPS:
            self._make_a_round()
        else:
            self._make_steps(min(due, self._steps) - self.done)
        if self.done >= due and len(self.made) > 1:
            window = [own[-KEPT:] for own in self._latest]
            self._state = decide(self._state, window, self._terms).state
            self._latest = [[] for _ in self._latest]

    def _make_steps(self, count: int) -> None:
        sizes = zip(self._state.setting.shares, self._profile.batch_sizes, strict=True)
        rows = [self._take(rank, count, share, planned) for rank, (share, planned) in enumerate(sizes)]
        self._meet(np.stack(rows), self._exchange_ns + self._apply_ns)
        self.done += count

    def _make_a_round(self) -> None:
        steps = min(self._terms.period, self._steps - self.done)
        runs = self._terms.in_a_round(self._state.setting, steps)
        size = self._profile.batch_sizes[0]
        rows = [self._take(rank, run, size, size) + self._apply_ns for rank, run in enumerate(runs)]
        self._meet(np.array([[row.sum()] for row in rows]), self._exchange_ns)
        self.done += steps

    def _take(self, rank: int, count: int, share: int, planned: int) -> Nanoseconds:
        """The next steps of a worker, each with so many samples."""
        made = self.made[rank]
        whole, delay = (a[made:] for a in self._own[rank].first_with_delays(made + count))
        took: Nanoseconds = np.rint((whole - delay) * (share / planned)).astype(np.int64) + delay
        warm = took if made else took[1:]
        self._latest[rank] += (warm / 1e9 / share).tolist()
        self.made[rank] += count
        self.compute_ns += int(took.sum())
        return took

    def _meet(self, rows: Nanoseconds, meeting_ns: int) -> None:
        rows[:, 0] += self._ready_ns
        slowest = rows.max(axis=0)
        ends = np.cumsum(slowest + meeting_ns)
        self.wait_ns += int((slowest - rows).sum())
        self.ends_ns.append(ends)
        self._ready_ns = np.full(len(rows), ends[-1])
