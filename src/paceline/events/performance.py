"""Loss curves and training speed, from the rows of a log.

The running loss is the mean over the last `window` samples, in the order in which their gradients
were finished, over all workers: so a mode with small gradients and one with large gradients are
smoothed alike. It is the loss on the parameters that each gradient was computed on: a worker's own
under `localsgd`, older ones under `asgd`.

Speed excludes the first steps, which compile and warm up, and evaluations. MFU (model FLOP
utilisation) is the work that the model needs, samples per second times the task's
`flops_per_sample`, over the peak of all GPUs together. Recomputation by activation checkpointing
is not counted as work. A CPU, or a GPU that is not in the table, has FLOP/s but no MFU. Pure.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.events.read import History
from paceline.events.schema import StepRow
from paceline.events.summary import end_ns


class LossPoint(NamedTuple):
    seconds: float  # since the first step's start, without evaluations on the way
    samples: int
    loss: float


def running_loss(history: History, window: int) -> list[LossPoint]:
    """A point for each gradient, from the first that completes a window of `window` samples."""
    rows = sorted((row for worker_rows in history.steps.values() for row in worker_rows), key=end_ns)
    return list(_points(rows, window, _evaluations(history)))


def _evaluations(history: History) -> deque[tuple[int, int]]:
    """(end, duration) of each evaluation, in nanoseconds."""
    events = [event for event in history.plain if event.kind == "evaluated"]
    return deque(sorted((e.at_ns, round(float(str(e.fields["took_s"])) * 1e9)) for e in events))


def _points(rows: Sequence[StepRow], window: int, pauses: deque[tuple[int, int]]) -> Iterator[LossPoint]:
    start_ns = min((row.start_ns for row in rows), default=0)
    last = deque[StepRow]()
    held = done = 0
    for row in rows:
        last.append(row)
        held += row.samples
        done += row.samples
        while pauses and pauses[0][0] <= end_ns(row):
            start_ns += pauses.popleft()[1]
        while held - last[0].samples >= window:
            held -= last.popleft().samples
        if held >= window:
            # Not a running sum: a NaN loss would stay in it for ever.
            mean = sum(r.loss * r.samples for r in last) / held
            yield LossPoint((end_ns(row) - start_ns) / 1e9, done, mean)


def first_below(points: Sequence[LossPoint], target: float) -> float | None:
    """The time at which the loss first reached the target; None: never."""
    return next((point.seconds for point in points if point.loss <= target), None)


def downsample(points: Sequence[LossPoint], count: int) -> list[LossPoint]:
    """At most `count` points, evenly spaced, with the first and the last."""
    if len(points) <= count:
        return list(points)
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]


# Dense bf16 matrix products on tensor cores, in FLOP/s, as the vendors state them. Keys are substrings of the
# device name; the first match counts.
PEAK_FLOPS: Mapping[str, float] = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    steady_samples_per_s: float
    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    mfu: float | None = None  # from 0 to 1


def peak_flops(device: str) -> float | None:
    return next((peak for name, peak in PEAK_FLOPS.items() if name in device), None)


def compute_speed(
    samples_per_s: float, *, tokens: float | None, flops: float | None, device: str | None, gpus: int
) -> Speed:
    """`tokens` and `flops`: of one sample."""
    work = None if flops is None else samples_per_s * flops
    peak = None if device is None else peak_flops(device)
    return Speed(
        steady_samples_per_s=samples_per_s,
        tokens_per_s=None if tokens is None else samples_per_s * tokens,
        flops_per_s=work,
        mfu=None if work is None or peak is None else work / (peak * gpus),
    )
