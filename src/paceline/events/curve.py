"""How did the loss fall, over time and over samples? A running mean of what the steps recorded.

The loss of a moment is the mean over the last so many samples, in the order in
which their gradients were finished, whoever computed them: so a mode with small
gradients and one with large gradients are smoothed alike. It is the loss on the
parameters that each gradient was computed on: a worker's own under `localsgd`,
older ones under `asgd`. Pure.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.events.read import History
from paceline.events.schema import StepRow
from paceline.events.summary import end_ns


class Point(NamedTuple):
    seconds: float  # since the first step's start, without evaluations on the way
    samples: int
    loss: float


def running_loss(history: History, window: int) -> list[Point]:
    """A point for each gradient, from the first that ends a whole window of so many samples."""
    rows = sorted((row for mine in history.steps.values() for row in mine), key=end_ns)
    return list(_points(rows, window, _evaluations(history)))


def _evaluations(history: History) -> deque[tuple[int, int]]:
    """When each was over, and how long nobody trained for it; in nanoseconds."""
    seen = [event for event in history.plain if event.kind == "evaluated"]
    return deque(sorted((e.at_ns, round(float(str(e.fields["took_s"])) * 1e9)) for e in seen))


def _points(rows: Sequence[StepRow], window: int, pauses: deque[tuple[int, int]]) -> Iterator[Point]:
    start_ns = min((row.start_ns for row in rows), default=0)
    last = deque[StepRow]()
    held = done = 0
    for row in rows:
        last.append(row)
        held, done = held + row.samples, done + row.samples
        while pauses and pauses[0][0] <= end_ns(row):
            start_ns += pauses.popleft()[1]
        while held - last[0].samples >= window:
            held -= last.popleft().samples
        if held >= window:
            # Summed anew each time: a loss that is no number must not stay in the sum for ever.
            mean = sum(r.loss * r.samples for r in last) / held
            yield Point((end_ns(row) - start_ns) / 1e9, done, mean)


def first_below(points: Sequence[Point], target: float) -> float | None:
    """When the loss first was at the target; None: never."""
    return next((point.seconds for point in points if point.loss <= target), None)


def thinned(points: Sequence[Point], count: int) -> list[Point]:
    """At most so many, evenly, with the first and the last."""
    if len(points) <= count:
        return list(points)
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]
