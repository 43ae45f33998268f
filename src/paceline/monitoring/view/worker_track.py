"""State of one worker as the log records it: progress, speed, and where its time goes.

Sums are kept per second, for the last two minutes, so that a snapshot costs the same however many
steps there are in a second.

A row of Python floats takes 400 bytes, and 64 workers produce 640 of them a second. A lane keeps
the newest rows of one worker in 52 bytes each: times in double precision, durations and the loss
in single. A batch holds the rows of one line of the log, exactly. Pure.
"""

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from paceline.events.follow import ColumnReader
from paceline.events.schema import PHASES, LinkRow
from paceline.monitoring.metrics.statistics import median, quantile

# step, start_s, the eight phases in seconds, loss
LaneRow = tuple[int, float, float, float, float, float, float, float, float, float, float]
WIDTH = 11
SHORT = WIDTH - 2  # of these in single precision


class Lane:
    """The newest rows of one worker in a ring buffer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = 0  # index of the next row to overwrite, once the buffer is full
        self._steps = array("q")
        self._starts = array("d")
        self._rest = array("f")

    def __len__(self) -> int:
        return len(self._steps)

    def extend(self, rows: Iterable[LaneRow]) -> None:
        for step, start_s, *rest in rows:
            if len(self) < self._most:
                self._steps.append(step)
                self._starts.append(start_s)
                self._rest.extend(rest)
                continue
            place = self._next
            self._steps[place] = step
            self._starts[place] = start_s
            self._rest[place * SHORT : (place + 1) * SHORT] = array("f", rest)
            self._next = (place + 1) % self._most

    def between(self, from_s: float, to_s: float, most: int) -> list[LaneRow]:
        """Rows that overlap this time, oldest first; of more than `most`, the newest."""
        in_order = (*range(self._next, len(self)), *range(self._next))
        touching = [p for p in in_order if self._starts[p] <= to_s and self._ended_s(p) >= from_s]
        return [
            _row(self._steps[p], self._starts[p], map(_short, self._rest[p * SHORT : (p + 1) * SHORT]))
            for p in touching[-most:]
        ]

    def newest(self, most: int) -> list[LaneRow]:
        return self.between(-inf, inf, most)

    def _ended_s(self, place: int) -> float:
        return self._starts[place] + sum(self._rest[place * SHORT : (place + 1) * SHORT - 1])


class Batch:
    """The rows of one line of the log."""

    __slots__ = ("_flat", "seq", "worker")

    def __init__(self, seq: int, worker: str, rows: Sequence[LaneRow]) -> None:
        self.seq = seq
        self.worker = worker
        self._flat = array("d", [number for row in rows for number in row])

    def __len__(self) -> int:
        return len(self._flat) // WIDTH

    def rows(self) -> Iterator[LaneRow]:
        for begin in range(0, len(self._flat), WIDTH):
            step, start_s, *rest = self._flat[begin : begin + WIDTH]
            yield _row(int(step), start_s, rest)


def _row(step: int, start_s: float, rest: Iterable[float]) -> LaneRow:
    data, forward, backward, delay, wait, codec, comm, apply, loss = rest
    return (step, start_s, data, forward, backward, delay, wait, codec, comm, apply, loss)


def _short(value: float) -> float:
    """The digits of single precision."""
    return float(f"{value:.7g}")


KEPT_S = 120
LANE_ROWS = 2_000  # steps that a timeline can show
RECENT_STEPS = 200
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(slots=True)
class Second:
    """Sums over the steps of one worker that ended in this second of the run."""

    number: int
    steps: int = 0
    samples: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    phases_s: "array[float]" = field(default_factory=lambda: array("d", [0.0] * len(PHASES)))


class Histogram:
    """Counts per bucket; `buckets` returns cumulative counts, as Prometheus expects them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        cumulative = []
        so_far = 0
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            so_far += count
            cumulative.append((bound, float(so_far)))
        return cumulative


@dataclass(slots=True)
class WorkerTrack:
    name: str
    rank: int | None = None
    pid: int | None = None
    node: str | None = None  # its host; None in logs of older versions
    link: LinkRow | None = None  # newest sample of its connections
    tokens_per_sample: float | None = None  # None: the task has no tokens
    has_started: bool = False
    started_s: float = 0.0
    starts: int = 0
    started_session: int = 0  # session of the run in which it was last started
    lost_because: str | None = None  # according to the launcher, since its last start
    is_lost: bool = False
    is_finished: bool = False
    is_called_slow: bool = False
    is_stopped: bool = False
    memory_bytes: int | None = None
    cpu_share: float | None = None
    steps: int = 0  # its own clock
    last_s: float | None = None  # time of its newest event, on the run's clock
    last_loss: float | None = None
    norm: float | None = None  # largest gradient norm of the newest second that has one
    norm_second: int | None = None
    norms_not_finite: int = 0
    total_steps: int = 0
    total_samples: int = 0
    total_bytes_out: int = 0
    total_bytes_in: int = 0
    abandoned: int = 0
    phases_s: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    seconds: deque[Second] = field(default_factory=lambda: deque(maxlen=KEPT_S))
    lane: Lane = field(default_factory=lambda: Lane(LANE_ROWS))
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    own_times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    staleness: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    step_histogram: Histogram = field(default_factory=lambda: Histogram(BOUNDS_S))
    staleness_histogram: Histogram = field(default_factory=lambda: Histogram(STALENESS_BOUNDS))

    def note_activity(self, at_s: float) -> None:
        self.last_s = at_s if self.last_s is None else max(self.last_s, at_s)

    def take_steps(self, columns: ColumnReader, origin_ns: int) -> list[LaneRow]:
        """The rows that are new, as a timeline shows them."""
        phases = [columns.ints(f"{phase}_ns") for phase in PHASES]
        new_rows: list[LaneRow] = []
        rows = zip(
            columns.ints("step"),
            columns.ints("start_ns"),
            columns.floats("loss"),
            columns.ints("samples"),
            columns.ints("bytes_out"),
            columns.ints("bytes_in"),
            zip(*phases, strict=True),
            strict=True,
        )
        for step, start_ns, loss, samples, bytes_out, bytes_in, spent_ns in rows:
            spent = [ns / 1e9 for ns in spent_ns]
            start_s = (start_ns - origin_ns) / 1e9
            lasted_s = sum(spent_ns) / 1e9
            self._count(start_s + lasted_s, samples, bytes_out, bytes_in, spent)
            self.steps = step + 1
            self.last_loss = loss
            self.durations.append(lasted_s)
            # Excludes the time it waits for others.
            self.own_times.append(sum(spent[:4]) + spent[7])
            self.step_histogram.add(lasted_s)
            d, f, b, delay, wait, codec, comm, apply = spent
            new_rows.append((step, start_s, d, f, b, delay, wait, codec, comm, apply, loss))
        self.lane.extend(new_rows)
        for end_s, norm in self._norms(columns, new_rows):
            self._take_norm(end_s, norm)
        return new_rows

    @staticmethod
    def _norms(columns: ColumnReader, rows: list[LaneRow]) -> list[tuple[float, float]]:
        """Norms of the worker's own gradient; where that is sharded, of the clipped one."""
        own = columns.of("own_norm")
        clipped = columns.of("grad_norm")
        known = [
            own_norm if own_norm is not None else clipped_norm
            for own_norm, clipped_norm in zip(own, clipped, strict=True)
        ]
        ends = ((row[1] + sum(row[2:10]), norm) for row, norm in zip(rows, known, strict=True))
        return [(end_s, float(norm)) for end_s, norm in ends if norm is not None]

    def _take_norm(self, end_s: float, norm: float) -> None:
        if not math.isfinite(norm):
            self.norms_not_finite += 1
            return
        second = math.floor(end_s)
        if self.norm is None or self.norm_second is None or second > self.norm_second:
            self.norm = norm
            self.norm_second = second
        else:
            self.norm = max(self.norm, norm)

    def _count(self, end_s: float, samples: int, out: int, into: int, spent: list[float]) -> None:
        number = math.floor(end_s)
        if not self.seconds or self.seconds[-1].number < number:
            self.seconds.append(Second(number))
        second = self.seconds[-1]  # a slightly late row counts in the newest second
        second.steps += 1
        second.samples += samples
        second.bytes_out += out
        second.bytes_in += into
        self.total_steps += 1
        self.total_samples += samples
        self.total_bytes_out += out
        self.total_bytes_in += into
        for i, s in enumerate(spent):
            second.phases_s[i] += s
            self.phases_s[i] += s
        self.note_activity(end_s)

    def take_staleness(self, staleness: int) -> None:
        self.staleness.append(staleness)
        self.staleness_histogram.add(staleness)

    def between(self, from_second: int, to_second: int) -> list[Second]:
        return [s for s in self.seconds if from_second <= s.number < to_second]

    @property
    def step_p50_s(self) -> float | None:
        return median(self.durations)

    @property
    def own_p50_s(self) -> float | None:
        """Median step time without waiting for others."""
        return median(self.own_times)

    @property
    def staleness_p95(self) -> float | None:
        return quantile(self.staleness, 0.95)

    def phase_shares(self, last: int = 60) -> dict[str, float]:
        """Share of each phase in the step time of the last seconds; empty without steps."""
        recent = list(self.seconds)[-last:]
        sums = [math.fsum(s.phases_s[i] for s in recent) for i in range(len(PHASES))]
        whole = math.fsum(sums)
        return (
            {phase: spent_s / whole for phase, spent_s in zip(PHASES, sums, strict=True)} if whole > 0 else {}
        )
