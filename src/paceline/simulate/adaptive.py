"""Simulator of adaptive mode, with the policy of real runs (sync/adaptive_policy.py).

Between two decisions nothing changes, so all steps up to the next one, or a round
of local steps, are computed at once. A step with fewer samples than planned takes
proportionally less, except for its delay.
"""

from functools import lru_cache
from operator import add

import numpy as np

from paceline.simulate.durations import Nanoseconds, all_steps, starts_ns
from paceline.simulate.prediction import Outline, Trace, ring_bytes
from paceline.simulate.profile import Profile, in_ns
from paceline.sync.adaptive_policy import WINDOW_STEPS, Window, decide, first_state, next_decision
from paceline.sync.adaptive_setting import AdaptiveTerms, Allowed, SyncPolicy


def adaptive(profile: Profile, *, allowed: Allowed, period: int, steps: int, seed: int) -> Outline:
    run = _Run(
        profile, AdaptiveTerms(allowed=allowed, batch_sizes=profile.batch_sizes, period=period), steps, seed
    )
    while run.done < steps:
        run.advance()
    workers = profile.num_workers
    ends = np.array(run.ends_ns, dtype=np.int64)
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


class _StepTimes:
    """The durations of all workers' steps with the planned samples, drawn as far as needed."""

    def __init__(self, profile: Profile, seed: int, steps: int) -> None:
        expected = steps + steps // 16
        self._profile = profile
        self._steps = all_steps(profile, seed, expected=expected)
        self._planned = np.array(profile.batch_sizes)[:, None]
        self._drawn = 0
        self._ranks = np.arange(profile.num_workers)[:, None]
        self._apply_ns = in_ns(profile.costs.apply_s)
        self.reach(expected)

    def reach(self, count: int) -> None:
        """Draw at least `count` steps of each worker."""
        if count <= self._drawn:
            return
        self._drawn = max(count, self._drawn * 3 // 2)
        drawn = [own.first_with_delays(self._drawn) for own in self._steps]
        self._took_ns, self._delays_ns = (np.stack(each) for each in zip(*drawn, strict=True))
        self._per_sample_s = self._took_ns / 1e9 / self._planned
        busy_ns = np.cumsum(np.pad(self._took_ns + self._apply_ns, ((0, 0), (1, 0))), axis=1)
        self._busy_ns = [own.data for own in busy_ns]  # single numbers are read faster than from an array

    def busy_ns(self, begins: list[int], ends: list[int]) -> list[int]:
        """The time of each worker's local steps from `begins` to `ends`, updates included."""
        self.reach(max(ends))
        each = zip(self._busy_ns, begins, ends, strict=True)
        return [own_ns[end] - own_ns[begin] for own_ns, begin, end in each]

    def per_sample_s(self, begins: list[int], ends: list[int]) -> list[list[float]]:
        each = zip(self._per_sample_s, begins, ends, strict=True)
        return [own_s[begin:end].tolist() for own_s, begin, end in each]

    def took_ns(self, done: list[int], count: int, samples: tuple[int, ...]) -> Nanoseconds:
        """The times of the next `count` steps of each worker, with `samples` each."""
        self.reach(max(done) + count)
        took_ns = self._next(self._took_ns, done, count)
        if samples == self._profile.batch_sizes:
            return took_ns.copy()
        delays_ns = self._next(self._delays_ns, done, count)
        parts = _column(samples) / self._planned
        cut_ns: Nanoseconds = np.rint((took_ns - delays_ns) * parts).astype(np.int64)
        cut_ns += delays_ns
        return cut_ns

    def _next(self, steps: Nanoseconds, done: list[int], count: int) -> Nanoseconds:
        """The next `count` columns of each row, after those that were made."""
        first = done[0]
        if done.count(first) == len(done):
            return steps[:, first : first + count]
        columns: Nanoseconds = steps[self._ranks, np.array(done)[:, None] + np.arange(count)]
        return columns


@lru_cache(maxsize=4)
def _column(numbers: tuple[int, ...]) -> Nanoseconds:
    return np.array(numbers)[:, None]


class _Run:
    """The state of a simulated run."""

    def __init__(self, profile: Profile, terms: AdaptiveTerms, steps: int, seed: int) -> None:
        costs = profile.costs
        self._terms = terms
        self._steps = steps
        self._state = first_state(terms)
        self._times = _StepTimes(profile, seed, steps)
        self._ready_ns: list[int] = starts_ns(profile).tolist()
        self._exchange_ns = in_ns(costs.collective.transfer_s(ring_bytes(profile)) + profile.all_wake_s)
        self._apply_ns = in_ns(costs.apply_s)
        self.done = 0  # steps of the run
        self.made = [0] * profile.num_workers  # steps of each worker
        self.ends_ns: list[int] = []  # of the synchronizations
        self.compute_ns = self.wait_ns = 0

    def advance(self) -> None:
        """Simulate up to the next decision, or the end."""
        due = next_decision(self.done)
        until = min(due, self._steps)
        if self._state.setting.policy is SyncPolicy.LOCAL_STEPS:
            window = self._make_rounds(until)
        else:
            window = self._make_steps(until - self.done)
        if self.done >= due and len(self.made) > 1:
            self._state = decide(self._state, window, self._terms).state

    def _make_steps(self, count: int) -> Window:
        """Simulate synchronous steps; their seconds per sample, without the run's warm-up step."""
        shares = self._state.setting.shares
        warming_up = int(self.done == 0)
        took_ns = self._times.took_ns(self.made, count, shares)
        window: list[list[float]] = (took_ns[:, warming_up:] / 1e9 / _column(shares)).tolist()
        all_took_ns = int(took_ns.sum())
        took_ns[:, 0] += self._ready_ns
        slowest_ns = took_ns.max(axis=0)
        self.compute_ns += all_took_ns
        self.wait_ns += len(shares) * int(slowest_ns.sum()) - sum(self._ready_ns) - all_took_ns
        self.made = [done + count for done in self.made]
        self.done += count
        self._synced(np.cumsum(slowest_ns + (self._exchange_ns + self._apply_ns)).tolist())
        return window

    def _make_rounds(self, until: int) -> Window:
        """Simulate rounds of local steps; seconds per sample of their latest steps."""
        begins = self.made
        while self.done < until:
            steps = min(self._terms.period, self._steps - self.done)
            self._make_round(self._terms.in_a_round(self._state.setting, steps))
            self.done += steps
        begins = [max(1, begin, end - WINDOW_STEPS) for begin, end in zip(begins, self.made, strict=True)]
        return self._times.per_sample_s(begins, self.made)

    def _make_round(self, runs: tuple[int, ...]) -> None:
        before = self.made
        self.made = list(map(add, self.made, runs))
        busy_ns = self._times.busy_ns(before, self.made)
        arrivals_ns = list(map(add, self._ready_ns, busy_ns))
        slowest_ns = max(arrivals_ns)
        self.compute_ns += sum(busy_ns) - sum(runs) * self._apply_ns
        self.wait_ns += slowest_ns * len(runs) - sum(arrivals_ns)
        self._synced([slowest_ns + self._exchange_ns])

    def _synced(self, ends_ns: list[int]) -> None:
        self.ends_ns += ends_ns
        self._ready_ns = [ends_ns[-1]] * len(self.made)
