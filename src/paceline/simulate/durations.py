"""How many nanoseconds does each step of each worker take? The same for every mode and however it is asked.

Step k of worker r is the same number in all modes with the same seed, so two
modes can be compared without the noise that they share.
"""

from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.simulate.profile import Profile
from paceline.simulate.slowness import slowness
from paceline.simulate.step_times import BLOCK, draw_s

Nanoseconds: TypeAlias = NDArray[np.int64]
_SHARED = 1 << 32  # no worker has this number


class Steps:
    """The durations of one worker's steps, made in chunks as they are needed."""

    def __init__(self, profile: Profile, seed: int, rank: int, *, chunk: int = 4096) -> None:
        self._profile, self._seed, self._rank = profile, seed, rank
        self._dice = np.random.default_rng((seed, rank))
        self._shared = np.random.default_rng((seed, _SHARED))
        self._chunk = -(-chunk // BLOCK) * BLOCK
        self._made: list[Nanoseconds] = []
        self._delays: list[Nanoseconds] = []

    def __iter__(self) -> Iterator[int]:
        """Endless; made for tight loops."""
        return chain.from_iterable(self._chunks())

    def first(self, count: int) -> Nanoseconds:
        while len(self._made) * self._chunk < count:
            self._make()
        return np.concatenate(self._made)[:count] if self._made else np.zeros(0, dtype=np.int64)

    def first_with_delays(self, count: int) -> tuple[Nanoseconds, Nanoseconds]:
        """(durations, and the part of them that does not depend on the number of samples)."""
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
        profile, first, count = self._profile, len(self._made) * self._chunk, self._chunk
        compute_s = draw_s(profile.step_times[self._rank], self._dice, self._shared, first, count)
        factors, delays_s = slowness(profile.stragglers, self._seed, self._rank, first, count)
        # As Slowness.duration_s and Turns.sleep do it, so that virtual time agrees to the nanosecond.
        seconds = np.maximum(compute_s, profile.pace_s) * factors + delays_s
        self._delays.append(np.rint(delays_s * 1e9).astype(np.int64))
        self._made.append(np.rint(np.maximum(seconds, 0.0) * 1e9).astype(np.int64))


def all_steps(profile: Profile, seed: int, *, expected: int) -> list[Steps]:
    """One per worker; `expected` steps each are likely to be needed."""
    chunk = max(64, min(expected, 1 << 16))
    return [Steps(profile, seed, rank, chunk=chunk) for rank in range(profile.num_workers)]


def matrix(profile: Profile, seed: int, steps: int) -> Nanoseconds:
    """Workers in rows, their first `steps` steps in columns."""
    return np.stack([own.first(steps) for own in all_steps(profile, seed, expected=steps)])


def starts_ns(profile: Profile) -> Nanoseconds:
    starts = profile.starts_at_s or (0.0,) * profile.num_workers
    return np.rint(np.asarray(starts) * 1e9).astype(np.int64)
