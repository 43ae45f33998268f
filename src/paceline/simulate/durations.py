"""Step durations: the nanoseconds of each step of each worker, the same for every mode.

Step k of worker r has the same duration in all modes with the same seed, so two
modes can be compared without their common noise. Straggler rules are evaluated for
whole ranges of steps, because a simulator needs millions; every number equals
`Stragglers.at` bit for bit, which a test checks.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.simulate.profile import BLOCK, Profile, draw_s
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.rng import draw_u64

Floats: TypeAlias = NDArray[np.float64]
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def slowness(
    rules: Sequence[StragglerRule], seed: int, worker: int, first: int, count: int
) -> tuple[Floats, Floats]:
    """(factors, delays in seconds) of the worker's steps first … first+count-1."""
    steps = np.arange(first, first + count)
    factors = np.ones(count)
    delays_s = np.zeros(count)
    for number, rule in enumerate(rules):
        if rule.worker is not None and rule.worker != worker:
            continue
        hit = steps >= rule.first_step
        if rule.end_step is not None:
            hit &= steps < rule.end_step
        if rule.steps is not None:
            hit &= np.isin(steps, rule.steps)
        if rule.probability < 1.0:
            hit &= _uniform(seed, number, worker, steps) < rule.probability
        factors[hit] *= _factors(rule, steps[hit])
        delays_s[hit] += rule.delay_s
    return factors, delays_s


def _factors(rule: StragglerRule, steps: NDArray[np.int64]) -> Floats:
    """StragglerRule.factor_at for all steps."""
    done = steps - rule.first_step + 1
    rising = 1.0 + (rule.factor - 1.0) * done / max(1, rule.ramp)
    return np.where(done >= rule.ramp, rule.factor, rising)


def _uniform(seed: int, number: int, worker: int, steps: NDArray[np.int64]) -> Floats:
    """draw_uniform(seed, number, worker, step) for all steps; unsigned arithmetic wraps as it should."""
    state = np.full(len(steps), draw_u64(seed, number, worker), dtype=np.uint64)
    state = _mix(state + (steps.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


Nanoseconds: TypeAlias = NDArray[np.int64]
_SHARED = 1 << 32  # no worker has this number


class Steps:
    """The durations of one worker's steps, made in chunks as they are needed."""

    def __init__(self, profile: Profile, seed: int, rank: int, *, chunk: int = 4096) -> None:
        self._profile = profile
        self._seed = seed
        self._rank = rank
        self._rng = np.random.default_rng((seed, rank))
        self._shared_rng = np.random.default_rng((seed, _SHARED))
        self._chunk = -(-chunk // BLOCK) * BLOCK
        self._made: list[Nanoseconds] = []
        self._delays: list[Nanoseconds] = []

    def __iter__(self) -> Iterator[int]:
        """An endless iterator, for tight loops."""
        return chain.from_iterable(self._chunks())

    def first(self, count: int) -> Nanoseconds:
        while len(self._made) * self._chunk < count:
            self._make()
        return np.concatenate(self._made)[:count] if self._made else np.zeros(0, dtype=np.int64)

    def first_with_delays(self, count: int) -> tuple[Nanoseconds, Nanoseconds]:
        """(durations, their part that does not depend on the number of samples)."""
        whole = self.first(count)
        return whole, np.concatenate([*self._delays, whole[:0]])[:count]

    def _chunks(self) -> Iterator[list[int]]:
        number = 0
        while True:
            if number == len(self._made):
                self._make()
            yield self._made[number].tolist()
            number += 1

    def _make(self) -> None:
        profile = self._profile
        first = len(self._made) * self._chunk
        count = self._chunk
        compute_s = draw_s(profile.step_times[self._rank], self._rng, self._shared_rng, first, count)
        factors, delays_s = slowness(profile.stragglers, self._seed, self._rank, first, count)
        # Computed as in Slowness.duration_s and Turns.sleep, so that virtual time agrees to the nanosecond.
        seconds = np.maximum(compute_s, profile.pace_s) * factors + delays_s
        self._delays.append(np.rint(delays_s * 1e9).astype(np.int64))
        self._made.append(np.rint(np.maximum(seconds, 0.0) * 1e9).astype(np.int64))


def all_steps(profile: Profile, seed: int, *, expected: int) -> list[Steps]:
    """The steps of each worker; `expected` of each are likely to be needed."""
    chunk = max(64, min(expected, 1 << 16))
    return [Steps(profile, seed, rank, chunk=chunk) for rank in range(profile.num_workers)]


def matrix(profile: Profile, seed: int, steps: int) -> Nanoseconds:
    """Workers in rows, their first `steps` steps in columns."""
    return np.stack([own.first(steps) for own in all_steps(profile, seed, expected=steps)])


def starts_ns(profile: Profile) -> Nanoseconds:
    starts = profile.starts_at_s or (0.0,) * profile.num_workers
    return np.rint(np.asarray(starts) * 1e9).astype(np.int64)
