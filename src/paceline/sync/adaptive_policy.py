"""Adaptive policy: chooses the synchronization policy and the shares from measured step times.

At every decision all workers exchange how long each worker's latest steps took,
per sample: a window. `Hindsight` computes what a step would have taken in that
window under each policy. A policy is chosen if its shares, computed from the
speeds of the previous window, would have been sufficiently faster in this one,
so speeds that flip from window to window change nothing. A more intrusive policy
must gain 10 % in two consecutive windows; other shares under the same policy
3 %; a simpler policy returns once it costs no more than 3 %. Pure: all workers
have the same numbers and reach the same decision. See docs/decisions/0016-adaptive-load-balancing.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import dist, fsum
from operator import add, getitem, truediv
from statistics import fmean, median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.sync.adaptive_setting import AdaptiveSetting, AdaptiveTerms, SyncPolicy

WINDOW_STEPS = 16  # latest steps of each worker in a window

Window = Sequence[Sequence[float]]  # by worker: seconds per sample of its latest steps


class Hindsight:
    """Duration of a step in one window, computed for any setting.

    A synchronous step takes as long as its slowest worker, a round of local steps
    as long as the slowest sum. A worker with fewer recorded steps repeats them. A
    decision evaluates the same settings more than once, and a simulator decides
    very often, so results are cached and whole rows are computed at a time.
    """

    def __init__(self, window: Window, terms: AdaptiveTerms) -> None:
        self._window = window
        self._terms = terms
        self._rows = window
        self._shortest = min(map(len, window))
        self._cache: dict[tuple[bool, tuple[int, ...]], float] = {}
        self._matrix: NDArray[np.float64] | None = None  # workers in rows, once it is needed

    def step_s(self, setting: AdaptiveSetting) -> float:
        """Seconds that a step of the run would have taken."""
        is_local = setting.policy is SyncPolicy.LOCAL_STEPS
        key = (is_local, setting.shares)
        step_s = self._cache.get(key)
        if step_s is None:
            step_s = self._in_rounds(setting.shares) if is_local else self._step_by_step(setting.shares)
            self._cache[key] = step_s
        return step_s

    def _step_by_step(self, shares: tuple[int, ...]) -> float:
        steps = max(map(len, self._window))
        slowest: list[float]
        if len(set(shares)) == 1:  # the slowest worker per sample is the slowest
            columns = islice(zip(*self._repeated(steps), strict=False), steps)
            slowest = [own * shares[0] for own in map(max, columns)]
        else:
            if self._matrix is None:
                self._matrix = np.array([own[:steps] for own in self._repeated(steps)])
            slowest = (self._matrix * np.array(shares)[:, None]).max(axis=0).tolist()
        return sum(slowest) / steps

    def _in_rounds(self, shares: tuple[int, ...]) -> float:
        period = self._terms.period
        rounds = max(1, WINDOW_STEPS // period)
        rows = self._repeated(rounds * max(shares))
        ends = [0] * len(shares)
        took_s = 0.0
        for _ in range(rounds):
            begins = ends
            ends = list(map(add, ends, shares))
            took_s += max(map(sum, map(getitem, rows, map(slice, begins, ends))))
        return took_s * self._terms.batch_sizes[0] / (rounds * period)

    def _repeated(self, count: int) -> Window:
        """At least `count` steps of each worker; recorded steps are repeated."""
        if self._shortest < count:
            count = max(count, 2 * WINDOW_STEPS)  # later calls need more
            self._rows = [[*own] * -(-count // len(own)) for own in self._window]
            self._shortest = count
        return self._rows


FIRST_DECISIONS = (4, 8)  # steps
DECIDE_EVERY = WINDOW_STEPS  # steps
MIN_POLICY_GAIN = 0.10  # that justifies a more intrusive policy
MIN_SHARE_GAIN = 0.03  # that justifies other shares under the same policy
_NOISE_FACTOR = 2.0  # times the variance of a mean: smaller differences count as noise
_SLOW = 1.2  # times as long as the fastest: named in a reason

Speeds: TypeAlias = tuple[float, ...]  # seconds per sample, by worker
Timed: TypeAlias = tuple[AdaptiveSetting, float]  # a setting, and the seconds of a step under it


@dataclass(frozen=True, slots=True)
class State:
    """Carried from one decision to the next; the same at every worker."""

    setting: AdaptiveSetting
    seconds: Speeds = ()  # in the previous window
    # The best policy of that window. Rarely needed, so it is computed on demand.
    preferred: Callable[[], SyncPolicy | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    reason: str | None = None  # for people; None: nothing changes


def first_state(terms: AdaptiveTerms) -> State:
    return State(terms.as_planned(terms.policies[0]))


def next_decision(done: int) -> int:
    """The number of finished steps at the next decision; within a round of local steps, at its end."""
    early = (step for step in FIRST_DECISIONS if step > done)
    return next(early, (done // DECIDE_EVERY + 1) * DECIDE_EVERY)


def decide(state: State, window: Window, terms: AdaptiveTerms) -> Decision:
    """The next state, and the reason if it differs. All workers pass the same numbers and agree."""
    if not all(window):
        return Decision(state)  # some worker has no measured step yet
    seconds = lasting_s(window)
    now = state.setting
    trial = Trial(window, terms)
    if state.seconds:
        setting, mean_seconds = _confirmed(state, seconds, trial)
    else:
        # If only shares can change, the first window decides at once: a wrong decision costs little.
        best = trial.best(now, seconds)
        is_clear = len(terms.policies) == 1 and trial.is_better(best, now, MIN_POLICY_GAIN)
        setting = best if is_clear else now
        mean_seconds = seconds
    after = State(setting, seconds, lambda: trial.best(now, seconds).policy)
    return Decision(after, None if setting == now else _reason(now, setting, mean_seconds, trial))


def _confirmed(state: State, seconds: Speeds, trial: "Trial") -> tuple[AdaptiveSetting, Speeds]:
    """(the setting that both windows favour, the mean speeds of both)."""
    now = state.setting
    best = trial.best(state.setting, state.seconds)
    if best == now or not (best.policy is now.policy or best.policy is state.preferred()):
        return now, seconds
    mean_seconds = tuple((before + after) / 2 for before, after in zip(state.seconds, seconds, strict=True))
    is_planned = best == trial.terms.as_planned(best.policy)
    return best if is_planned else trial.terms.by_speed(best.policy, mean_seconds), mean_seconds


def lasting_s(window: Window) -> Speeds:
    """Seconds per sample, by worker, without differences that noise alone explains.

    A worker's distance from the median counts only beyond the noise of a mean. The noise is at least
    the workers' average: a worker without delays in this window is not less noisy than the others.
    """
    # Exact sums, so that equal steps have equal means, however many they are.
    means = list(map(truediv, map(fsum, window), map(len, window)))
    noise = list(map(_noise, window, means))
    typical = median(means)
    common_noise = fmean(noise)
    return tuple(
        typical + _beyond(mean - typical, _NOISE_FACTOR * max(own_noise, common_noise))
        for mean, own_noise in zip(means, noise, strict=True)
    )


def _noise(values: Sequence[float], mean: float) -> float:
    """The variance of their mean; 0 for a single value."""
    count = len(values)
    return dist(values, (mean,) * count) ** 2 / (count * (count - 1)) if count > 1 else 0.0


def _beyond(difference: float, noise: float) -> float:
    """The difference, shrunk by the variance `noise`; 0 if it may be noise alone."""
    square = difference * difference
    return difference * (1.0 - noise / square) if square > noise else 0.0


class Trial:
    """Compares settings by what they would have done in one window."""

    def __init__(self, window: Window, terms: AdaptiveTerms) -> None:
        self.terms = terms
        self.step_s = Hindsight(window, terms).step_s
        self._planned: dict[SyncPolicy, Timed] = {
            setting.policy: (setting, self.step_s(setting)) for setting in _all_planned(terms)
        }

    def best(self, now: AdaptiveSetting, seconds: Sequence[float]) -> AdaptiveSetting:
        """The setting worth changing to, with shares computed from `seconds`; `now` if none is."""
        policies = tuple(self._planned)
        position = policies.index(now.policy)
        best = (now, self.step_s(now))
        best = _better(best, self._offer(now.policy, seconds), MIN_SHARE_GAIN)
        for policy in policies[:position]:
            simpler, simpler_s = self._offer(policy, seconds)
            if simpler_s <= best[1] * (1 + MIN_SHARE_GAIN):
                return simpler
        for policy in policies[position + 1 :]:
            best = _better(best, self._offer(policy, seconds), MIN_POLICY_GAIN)
        return best[0]

    def is_better(self, setting: AdaptiveSetting, other: AdaptiveSetting, gain: float) -> bool:
        """Whether `setting` is faster than `other` by at least `gain`."""
        return _is_faster(self.step_s(setting), self.step_s(other), gain)

    def _offer(self, policy: SyncPolicy, seconds: Sequence[float]) -> Timed:
        """Shares by speed if they gain enough: after transient delays equal shares do better."""
        planned = self._planned[policy]
        if policy is SyncPolicy.SSGD:
            return planned
        by_speed = self.terms.by_speed(policy, seconds)
        return _better(planned, (by_speed, self.step_s(by_speed)), MIN_SHARE_GAIN)


@lru_cache(maxsize=4)  # constant for a whole run
def _all_planned(terms: AdaptiveTerms) -> tuple[AdaptiveSetting, ...]:
    return tuple(map(terms.as_planned, terms.policies))


def _better(current: Timed, other: Timed, gain: float) -> Timed:
    """The other, if it is faster by at least `gain`."""
    return other if _is_faster(other[1], current[1], gain) else current


def _is_faster(step_s: float, other_s: float, gain: float) -> bool:
    return 0 < step_s * (1 + gain) <= other_s


def _reason(was: AdaptiveSetting, now: AdaptiveSetting, seconds: Sequence[float], trial: Trial) -> str:
    before_s = trial.step_s(was)
    after_s = trial.step_s(now)
    gain = f"a step takes {after_s * 1e3:.1f} ms instead of {before_s * 1e3:.1f} ms"
    if after_s > before_s:
        gain = f"a step takes {after_s * 1e3:.1f} ms, hardly more than {before_s * 1e3:.1f} ms"
    is_planned = now == trial.terms.as_planned(now.policy)
    if now.policy is not SyncPolicy.LOCAL_STEPS:
        batches = "the planned batches" if is_planned else "batches by speed"
        return f"{_speeds(seconds, trial.terms)}: with {batches} {gain}"
    if was.policy is SyncPolicy.LOCAL_STEPS:
        local_steps = "equal local steps" if is_planned else "local steps by speed"
        return f"{_speeds(seconds, trial.terms)}: with {local_steps} {gain}"
    cause = (
        "delays are transient" if is_planned else f"delays are transient, and {_speeds(seconds, trial.terms)}"
    )
    return f"{cause}: with a synchronization every {trial.terms.period} steps {gain}"


def _speeds(seconds: Sequence[float], terms: AdaptiveTerms) -> str:
    """The workers that were slow in the last two windows, for a reason."""
    fastest = max(min(seconds), 1e-12)
    slow = [(worker, own / fastest) for worker, own in enumerate(seconds) if own > _SLOW * fastest]
    if not slow:
        return "all workers are about equally fast"
    slow.sort(key=lambda entry: -entry[1])
    named = ", ".join(
        f"{terms.name_of(worker)} takes {times:.1f} times as long" for worker, times in slow[:3]
    )
    more = f" and {len(slow) - 3} more are slow" if len(slow) > 3 else ""
    return f"{named} per sample as the fastest{more}"
