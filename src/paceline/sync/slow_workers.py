"""Slow-worker detection from the time per shard of each worker, step by step.

Workers that synchronize have equal step times, so the time before the barrier
counts. A worker is slow when the median of its latest times exceeds its peers'
by a factor, by more than the noise and by a minimum difference, for a minimum
time. It has recovered when it is close to them again. Pure: all workers observe
the same numbers and reach the same result.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

KEPT = 9  # latest times kept per worker
NEWEST = 3  # newest ones, which give the current speed
SLOW = 1.5  # times as long as its peers
RECOVERED = 1.2  # the same; between the two nothing changes
LASTING_S = 1.0  # a worker is slow after this long, and
LASTING_STEPS = 3  # this many steps, above the limit
MIN_DIFFERENCE_S = 0.002  # smaller differences come from the operating system's scheduler
NOISE = 4.0  # times the median deviation within a worker
# A worker is worth replacing if it is this slow for this long, and was faster before: a worker that was
# slow from its start would not be faster in a new process.
REPLACED = 2.0  # times as long as its peers
REPLACED_AFTER_S = 5.0
BECAME_SLOW = 1.3  # times its own best
_MAD_TO_SIGMA = 1.4826  # standard deviation of a normal distribution / its median absolute deviation
_MIN_S = 1e-9


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker's speed in seconds per shard."""

    now_s: float
    peers_s: float
    best_s: float  # the worker's own best

    @property
    def score(self) -> float:
        return self.now_s / max(self.peers_s, _MIN_S)

    def describe(self) -> str:
        times = f"{self.now_s * 1e3:.1f} ms for a shard where its peers take {self.peers_s * 1e3:.1f} ms"
        return f"{times}, {self.score:.1f} times as long; its own best was {self.best_s * 1e3:.1f} ms"


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A worker has become slow, or has recovered."""

    worker: int
    is_slow: bool
    pace: Pace


@dataclass(slots=True)
class _Times:
    """The measurements of one worker."""

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    best_s: float = float("inf")
    is_slow: bool = False
    since_s: float = 0.0  # how long it has been above the limit without interruption
    steps: int = 0  # the same, in steps
    is_reported: bool = False  # as worth replacing

    def now_s(self) -> float:
        return median(list(self.newest)[-NEWEST:])

    def noise_s(self) -> float:
        middle = median(self.newest)
        return _MAD_TO_SIGMA * median(abs(seconds - middle) for seconds in self.newest)

    def reset(self) -> None:
        self.is_slow = False
        self.is_reported = False
        self.since_s = 0.0
        self.steps = 0


class SlowWorkers:
    def __init__(self, workers: int) -> None:
        self._times = [_Times() for _ in range(workers)]
        self._paces: list[Pace] = []

    def observe(
        self, seconds: Sequence[float | None], bests_s: Sequence[float], step_s: float
    ) -> list[SpeedChange]:
        """One step: seconds per shard by worker (None: it had none) and their best; seconds of the step."""
        for times, own_s, best_s in zip(self._times, seconds, bests_s, strict=True):
            if own_s is not None:
                times.newest.append(own_s)
                times.best_s = min(times.best_s, best_s)
        if len(self._times) < 2 or not all(times.newest for times in self._times):
            return []
        now_s = [times.now_s() for times in self._times]
        self._paces = [
            Pace(own_s, median([*now_s[:worker], *now_s[worker + 1 :]]), self._times[worker].best_s)
            for worker, own_s in enumerate(now_s)
        ]
        changes = [self._change(worker, step_s) for worker in range(len(now_s))]
        return [change for change in changes if change is not None]

    def worth_replacing(self) -> list[tuple[int, Pace]]:
        """Workers that are certainly slow, each reported once; call it after `observe`."""
        workers = []
        for worker, pace in enumerate(self._paces):
            times = self._times[worker]
            lasts = times.is_slow and times.since_s >= REPLACED_AFTER_S and not times.is_reported
            if lasts and pace.score >= REPLACED and pace.now_s >= BECAME_SLOW * pace.best_s:
                times.is_reported = True
                workers.append((worker, pace))
        return workers

    def _change(self, worker: int, step_s: float) -> SpeedChange | None:
        own = self._times[worker]
        pace = self._paces[worker]
        if pace.score < RECOVERED:
            was_slow = own.is_slow
            own.reset()
            return SpeedChange(worker, False, pace) if was_slow else None
        if not own.is_slow and not self._is_above_limit(worker):
            return None
        own.since_s += step_s
        own.steps += 1
        if own.is_slow or own.since_s < LASTING_S or own.steps < LASTING_STEPS:
            return None
        own.is_slow = True
        return SpeedChange(worker, True, pace)

    def _is_above_limit(self, worker: int) -> bool:
        pace = self._paces[worker]
        if pace.score < SLOW or pace.now_s - pace.peers_s < MIN_DIFFERENCE_S:
            return False
        noise_s = median(times.noise_s() for times in self._times if times is not self._times[worker])
        return pace.now_s - pace.peers_s >= NOISE * noise_s
