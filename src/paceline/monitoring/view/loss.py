"""The loss of a run while it is read from its log; the curve is thinned as the run gets long.

The smooth loss is a running mean with a half-life of fifty steps of one worker. The final loss is the
mean of the last steps, as result.json has it. The best loss is the lowest of the running mean and, of a
run that is over, the final loss: it is never above either. Pure.
"""

import json
import math
from dataclasses import dataclass, field

from paceline.events.summary import Tail
from paceline.plan.codec import Json

MAX_POINTS = 400
HALF_LIFE = 50.0


@dataclass(slots=True)
class LossRecord:
    last: float | None = None
    smooth: float | None = None
    best: float | None = None
    best_step: int | None = None
    not_finite: int = 0
    curve: list[tuple[int, float, float]] = field(default_factory=list)  # step of the run, seconds, smooth
    evaluations: list[dict[str, Json]] = field(default_factory=list)
    _tail: Tail = field(default_factory=Tail)
    _is_new_session: bool = False
    _every: int = 1
    _seen: int = 0
    _decay: float = 0.5 ** (1 / HALF_LIFE)

    def begin_session(self) -> None:
        self._is_new_session = True

    def take_last(self, rank: int, position: int, loss: float) -> None:
        """Add to the final loss, which covers the newest session with a step."""
        if self._is_new_session:
            self._tail = Tail()
            self._is_new_session = False
        self._tail.take(rank, position, loss)

    @property
    def final(self) -> float | None:
        return self._tail.mean()

    def take(self, step: int, end_s: float, loss: float, workers: int) -> None:
        self.last = loss
        if not math.isfinite(loss):
            self.not_finite += 1
            return
        decay = self._decay ** (1 / max(1, workers))
        self.smooth = loss if self.smooth is None else decay * self.smooth + (1 - decay) * loss
        if self.best is None or self.smooth < self.best:
            self.best = self.smooth
            self.best_step = step
        self._seen += 1
        if self._seen % self._every == 0:
            self.curve.append((step, end_s, self.smooth))
            if len(self.curve) >= 2 * MAX_POINTS:
                self.curve = self.curve[1::2]
                self._every *= 2

    def evaluated(self, step: int, at_s: float, metrics: str) -> None:
        # An evaluation of a process that was lost afterwards is computed and written again.
        self.evaluations = [e for e in self.evaluations if e["step"] != step]
        self.evaluations.append({"step": step, "t_s": at_s, "metrics": json.loads(metrics)})

    def rewound(self, to_step: int) -> None:
        """The run resumed from a checkpoint: drop everything after it."""
        self.curve = [point for point in self.curve if point[0] <= to_step]
        self.evaluations = [e for e in self.evaluations if int(str(e["step"])) <= to_step]
        if self.best_step is not None and self.best_step > to_step:
            lowest = min(self.curve, key=lambda point: point[2], default=None)
            self.best_step = None if lowest is None else lowest[0]
            self.best = None if lowest is None else lowest[2]

    def to_dict(self, *, is_over: bool) -> dict[str, Json]:
        final = self.final if is_over else None
        best = self.best
        best_step = self.best_step
        if final is not None and math.isfinite(final) and (best is None or final < best):
            last = self.curve[-1][0] if self.curve else None
            best = final
            best_step = last
        points = (
            self.curve if len(self.curve) <= MAX_POINTS else self.curve[:: len(self.curve) // MAX_POINTS + 1]
        )
        if self.curve and points[-1] != self.curve[-1]:
            points = [*points, self.curve[-1]]
        return {
            "last": finite_or_nan(self.last),
            "smooth": self.smooth,
            "final": finite_or_nan(final),
            "best": best,
            "best_step": best_step,
            "not_finite": self.not_finite,
            "curve": [list(point) for point in points],
            "evaluations": list(self.evaluations),
        }


def finite_or_nan(value: float | None) -> Json:
    """JSON has no NaN: such a loss becomes the string "nan"."""
    return value if value is None or math.isfinite(value) else "nan"
