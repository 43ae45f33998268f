"""Adaptive policy: chooses the synchronization policy and the shares from measured step times.

At every decision all workers exchange how long each worker's latest steps took,
per sample: a window. `Hindsight` computes what a step would have taken in that
window under each policy. A policy is chosen if its shares, computed from the
speeds of the previous window, would have been sufficiently faster in this one,
so speeds that flip from window to window change nothing. A more intrusive policy
must gain 10 % in two consecutive windows; other shares under the same policy
3 %; a simpler policy returns once it costs no more than 3 %. Pure: all workers
have the same numbers and reach the same decision. See docs/decisions/0016.
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

# A step at which all meet takes as long as its slowest worker, a round of local
# steps as long as the slowest sum. Steps that are missing are taken again. A
# decision asks for the same settings more than once, and a simulator decides very
# often: so nothing is computed twice, and whole rows at a time.

WINDOW_STEPS = 16  # of each worker's latest steps

Window = Sequence[Sequence[float]]  # by worker: seconds per sample of its latest steps


class Hindsight:
    def __init__(self, window: Window, terms: AdaptiveTerms) -> None:
        self._window = window
        self._terms = terms
        self._rows = window
        self._shortest = min(map(len, window))
        self._known: dict[tuple[bool, tuple[int, ...]], float] = {}
        self._matrix: NDArray[np.float64] | None = None  # workers in rows, once it is needed

    def step_s(self, setting: AdaptiveSetting) -> float:
        """What a step of the run would have taken."""
        key = (setting.way is SyncPolicy.LOCAL_STEPS, setting.shares)
        if (found := self._known.get(key)) is None:
            found = self._known[key] = self._in_rounds(key[1]) if key[0] else self._step_by_step(key[1])
        return found

    def _step_by_step(self, shares: tuple[int, ...]) -> float:
        steps = max(map(len, self._window))
        slowest: list[float]
        if len(set(shares)) == 1:  # whoever is slowest per sample is slowest
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
        """At least so many steps of each worker, again and again."""
        if self._shortest < count:
            count = max(count, 2 * WINDOW_STEPS)  # more will be asked for
            self._rows = [[*own] * -(-count // len(own)) for own in self._window]
            self._shortest = count
        return self._rows


FIRST_DECISIONS = (4, 8)  # steps
DECIDE_EVERY = WINDOW_STEPS  # steps
WORTH_A_WAY = 0.10  # gain that justifies a more intrusive policy
WORTH_A_SHARE = 0.03  # gain that justifies other shares under the same policy
_DOUBT = 2.0  # times the noise of a mean
_SLOW = 1.2  # times as long as the fastest: worth naming in a reason

Speeds: TypeAlias = tuple[float, ...]  # seconds per sample, by worker
Timed: TypeAlias = tuple[AdaptiveSetting, float]  # and what a step would have taken with it


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered from one decision to the next; the same at every worker."""

    setting: AdaptiveSetting
    seconds: Speeds = ()  # in the window before
    # What looked best in that window. Most often nobody asks, so it is only worked out for those who do.
    wish: Callable[[], SyncPolicy | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    reason: str | None = None  # in words; None: nothing changes


def first_state(terms: AdaptiveTerms) -> State:
    return State(terms.as_planned(terms.ways[0]))


def next_decision(done: int) -> int:
    """The number of steps after which all decide again; in a round of local steps, at its end."""
    early = (step for step in FIRST_DECISIONS if step > done)
    return next(early, (done // DECIDE_EVERY + 1) * DECIDE_EVERY)


def decide(state: State, window: Window, terms: AdaptiveTerms) -> Decision:
    """Every worker comes to the same decision, because all are told the same numbers."""
    if not all(window):
        return Decision(state)  # somebody has nothing to show yet
    seconds = lasting_s(window)
    now = state.setting
    trial = Trial(window, terms)
    if state.seconds:
        setting, believed = _confirmed(state, seconds, trial)
    else:
        # Where only shares can change, the first ones are dealt at once: little is lost if they are wrong.
        wish = trial.best(now, seconds)
        is_clear = len(terms.ways) == 1 and trial.is_better(wish, now, WORTH_A_WAY)
        setting = wish if is_clear else now
        believed = seconds
    after = State(setting, seconds, lambda: trial.best(now, seconds).way)
    return Decision(after, None if setting == now else _reason(now, setting, believed, trial))


def _confirmed(state: State, seconds: Speeds, trial: "Trial") -> tuple[AdaptiveSetting, Speeds]:
    """(what two windows speak for, the speeds in both of them)."""
    now = state.setting
    best = trial.best(state.setting, state.seconds)
    if best == now or not (best.way is now.way or best.way is state.wish()):
        return now, seconds
    believed = tuple((one + other) / 2 for one, other in zip(state.seconds, seconds, strict=True))
    is_planned = best == trial.terms.as_planned(best.way)
    return best if is_planned else trial.terms.by_speed(best.way, believed), believed


def lasting_s(window: Window) -> Speeds:
    """Seconds per sample, by worker, as far as they can be believed to last.

    How far a worker's mean is from the others' is only believed beyond the noise of a mean; a worker that
    had no bad luck in this window is no less noisy than the rest.
    """
    # Exact sums, so that equal steps have equal means, however many they are.
    means = list(map(truediv, map(fsum, window), map(len, window)))
    noise = list(map(_noise, window, means))
    usual = median(means)
    common_noise = fmean(noise)
    return tuple(
        usual + _beyond(mean - usual, _DOUBT * max(own_noise, common_noise))
        for mean, own_noise in zip(means, noise, strict=True)
    )


def _noise(values: Sequence[float], mean: float) -> float:
    """The variance of their mean; a single value shows none."""
    count = len(values)
    return dist(values, (mean,) * count) ** 2 / (count * (count - 1)) if count > 1 else 0.0


def _beyond(difference: float, noise: float) -> float:
    """What is left of a difference when noise, as a square, is taken off; 0 if it may be noise alone."""
    square = difference * difference
    return difference * (1.0 - noise / square) if square > noise else 0.0


class Trial:
    """What each setting would have made of one window."""

    def __init__(self, window: Window, terms: AdaptiveTerms) -> None:
        self.terms = terms
        self.step_s = Hindsight(window, terms).step_s
        self._planned: dict[SyncPolicy, Timed] = {
            setting.way: (setting, self.step_s(setting)) for setting in _all_planned(terms)
        }

    def best(self, now: AdaptiveSetting, seconds: Sequence[float]) -> AdaptiveSetting:
        """What it would have been worth going over to, with shares that follow `seconds`."""
        ways = tuple(self._planned)
        here = ways.index(now.way)
        best = (now, self.step_s(now))
        best = _better(best, self._offer(now.way, seconds), WORTH_A_SHARE)
        for way in ways[:here]:
            simpler, simpler_s = self._offer(way, seconds)
            if simpler_s <= best[1] * (1 + WORTH_A_SHARE):
                return simpler
        for way in ways[here + 1 :]:
            best = _better(best, self._offer(way, seconds), WORTH_A_WAY)
        return best[0]

    def is_better(self, one: AdaptiveSetting, other: AdaptiveSetting, gain: float) -> bool:
        """Is it faster by so much?"""
        return _is_faster(self.step_s(one), self.step_s(other), gain)

    def _offer(self, way: SyncPolicy, seconds: Sequence[float]) -> Timed:
        """Shares by speed if they are worth it: after passing delays equal ones do better."""
        planned = self._planned[way]
        if way is SyncPolicy.SSGD:
            return planned
        dealt = self.terms.by_speed(way, seconds)
        return _better(planned, (dealt, self.step_s(dealt)), WORTH_A_SHARE)


@lru_cache(maxsize=4)  # they are those of the whole run
def _all_planned(terms: AdaptiveTerms) -> tuple[AdaptiveSetting, ...]:
    return tuple(map(terms.as_planned, terms.ways))


def _better(one: Timed, other: Timed, gain: float) -> Timed:
    """The other, if it is faster by so much."""
    return other if _is_faster(other[1], one[1], gain) else one


def _is_faster(one_s: float, other_s: float, gain: float) -> bool:
    return 0 < one_s * (1 + gain) <= other_s


def _reason(was: AdaptiveSetting, now: AdaptiveSetting, seconds: Sequence[float], trial: Trial) -> str:
    before_s = trial.step_s(was)
    after_s = trial.step_s(now)
    gain = f"a step takes {after_s * 1e3:.1f} ms instead of {before_s * 1e3:.1f} ms"
    if after_s > before_s:
        gain = f"a step takes {after_s * 1e3:.1f} ms, hardly more than {before_s * 1e3:.1f} ms"
    is_planned = now == trial.terms.as_planned(now.way)
    if now.way is not SyncPolicy.LOCAL_STEPS:
        batches = "the planned batches" if is_planned else "batches by speed"
        return f"{_speeds(seconds, trial.terms)}: with {batches} {gain}"
    if was.way is SyncPolicy.LOCAL_STEPS:
        local_steps = "equal local steps" if is_planned else "local steps by speed"
        return f"{_speeds(seconds, trial.terms)}: with {local_steps} {gain}"
    cause = "delays come and go" if is_planned else f"delays come and go, and {_speeds(seconds, trial.terms)}"
    return f"{cause}: with a meeting every {trial.terms.period} steps {gain}"


def _speeds(seconds: Sequence[float], terms: AdaptiveTerms) -> str:
    """Who was slow in the last two windows, in words."""
    fastest = max(min(seconds), 1e-12)
    slow = [(worker, own / fastest) for worker, own in enumerate(seconds) if own > _SLOW * fastest]
    if not slow:
        return "all workers are about equally fast"
    slow.sort(key=lambda one: -one[1])
    named = ", ".join(
        f"{terms.name_of(worker)} takes {times:.1f} times as long" for worker, times in slow[:3]
    )
    more = f" and {len(slow) - 3} more are slow" if len(slow) > 3 else ""
    return f"{named} per sample as the fastest{more}"
