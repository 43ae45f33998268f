"""Slow-worker detection from the time per shard of each worker, step by step.

Workers that synchronize have equal step times, so the time before the barrier
counts. A worker is slow when the median of its latest times exceeds its peers'
by a factor, by more than the noise and by a minimum difference, for a minimum
time. It has recovered when it comes near them again. Pure: all workers observe
the same numbers and reach the same result.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

KEPT = 9  # times of a worker that are remembered
NEWEST = 3  # of them: how fast it is now
SLOW = 1.5  # times as long as its peers
RECOVERED = 1.2  # the same; between the two nothing changes
LASTING_S = 1.0
LASTING_STEPS = 3
MIN_DIFFERENCE_S = 0.002  # less is the scheduler's doing, whoever is behind
NOISE = 4.0  # times the usual deviation within a worker
# Worth a new process: so slow, for so long, and not from its start, for then a new one would be no faster.
REPLACED = 2.0
REPLACED_AFTER_S = 5.0
BECAME_SLOW = 1.3
_OF_NORMAL = 1.4826  # a median absolute deviation, times this, is the standard deviation of a bell curve
_SHORTEST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a worker is: seconds for one shard."""

    now_s: float
    peers_s: float
    best_s: float  # of its own

    @property
    def score(self) -> float:
        return self.now_s / max(self.peers_s, _SHORTEST_S)

    def in_words(self) -> str:
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
    """What is known of one worker."""

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    best_s: float = float("inf")
    is_slow: bool = False
    since_s: float = 0.0  # how long it has been above the limit without a break
    steps: int = 0  # the same, in steps
    is_told: bool = False  # that it is worth a new process

    def now_s(self) -> float:
        return median(list(self.newest)[-NEWEST:])

    def noise_s(self) -> float:
        middle = median(self.newest)
        return _OF_NORMAL * median(abs(seconds - middle) for seconds in self.newest)

    def forget(self) -> None:
        self.is_slow = False
        self.is_told = False
        self.since_s = 0.0
        self.steps = 0


class SlowWorkers:
    def __init__(self, workers: int) -> None:
        self._times = [_Times() for _ in range(workers)]
        self._paces: list[Pace] = []

    def heard(
        self, seconds: Sequence[float | None], bests_s: Sequence[float], step_s: float
    ) -> list[SpeedChange]:
        """One step: what a shard took, by worker (None: it had none), its best ever; what the step took."""
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
        found = [self._judge(worker, step_s) for worker in range(len(now_s))]
        return [one for one in found if one is not None]

    def worth_replacing(self) -> list[tuple[int, Pace]]:
        """Those whose slowness is beyond doubt, each once; to be asked after `heard`."""
        found = []
        for worker, pace in enumerate(self._paces):
            times = self._times[worker]
            lasts = times.is_slow and times.since_s >= REPLACED_AFTER_S and not times.is_told
            if lasts and pace.score >= REPLACED and pace.now_s >= BECAME_SLOW * pace.best_s:
                times.is_told = True
                found.append((worker, pace))
        return found

    def _judge(self, worker: int, step_s: float) -> SpeedChange | None:
        own = self._times[worker]
        pace = self._paces[worker]
        if pace.score < RECOVERED:
            was_slow = own.is_slow
            own.forget()
            return SpeedChange(worker, False, pace) if was_slow else None
        if not own.is_slow and not self._is_above(worker):
            return None
        own.since_s += step_s
        own.steps += 1
        if own.is_slow or own.since_s < LASTING_S or own.steps < LASTING_STEPS:
            return None
        own.is_slow = True
        return SpeedChange(worker, True, pace)

    def _is_above(self, worker: int) -> bool:
        pace = self._paces[worker]
        if pace.score < SLOW or pace.now_s - pace.peers_s < MIN_DIFFERENCE_S:
            return False
        noise_s = median(times.noise_s() for times in self._times if times is not self._times[worker])
        return pace.now_s - pace.peers_s >= NOISE * noise_s
