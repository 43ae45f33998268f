"""Schema of a benchmark's comparison.json: everything that its page shows.

`speedup` and `efficiency` at the top are those of `subject`, by total time: the baseline's seconds over its
own, and that over its workers. Beside them is the same of the steady part. What is not known is null.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from paceline.comparison.schema import Estimate, Machine, Quality, finite
from paceline.core.errors import DamagedRecordError
from paceline.plan.codec import decode, to_json

# Two times matter, and neither stands for the other. `total_s` runs from the call to its result: processes,
# imports, the cluster and the training. The steady rate leaves the beginning out: what a long run would see.

RUN_SCHEMA = "paceline.benchmark-run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """Metrics after a number of epochs."""

    epoch: float  # 1.0: after the first one; 0.5: in the middle of it
    seconds: float  # since the first step began
    metrics: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Total resources of a cluster."""

    nodes: int
    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    name: str  # of its files: baseline, ray, ssgd
    title: str  # short display name, next to a bar
    framework: str  # whose loop it was: keras, torch, paceline
    workers: int
    global_batch: int  # samples of a step, over all workers
    worker_batch: int  # samples per worker and step
    steps: int  # of each worker
    samples: int  # of all workers together
    epochs: float | None  # None: the number of samples is unknown
    total_s: float  # from the call to its result
    first_step_s: float | None  # from the call to the beginning of the first step
    steady_samples_per_s: float | None  # None: too short to have a steady part
    warm_up: str  # what the steady rate leaves out: "the first 5 steps", "the first epoch"
    metrics: dict[str, float | None]  # of the finished model
    history: tuple[HistoryPoint, ...] = ()
    cluster: Cluster | None = None  # None: no cluster had part in it
    facts: dict[str, str] = field(default_factory=dict)  # further facts for the reader
    started_unix_s: float = 0.0
    schema: str = RUN_SCHEMA


def write_measured(run: Measured, path: Path) -> None:
    text = json.dumps(finite(to_json(run)), indent=2, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


def read_measured(path: Path) -> Measured:
    try:
        measured = decode(Measured, path.read_text(encoding="utf-8"), schema=RUN_SCHEMA)
    except (OSError, ValueError) as error:
        raise DamagedRecordError(f"cannot read {path}: {error}", "run the benchmark again") from error
    assert isinstance(measured, Measured), "decode(Measured, …) builds one"
    return measured


def steady_rate(starts_s: list[float], batch: int, warm_up: int) -> float | None:
    """Samples/s of one worker from the start times of its steps, after `warm_up` of them."""
    counted = len(starts_s) - 1 - warm_up
    if counted < 1 or starts_s[-1] <= starts_s[warm_up]:
        return None
    return batch * counted / (starts_s[-1] - starts_s[warm_up])


def default_warm_up(steps: int) -> int:
    """Steps that are left out: a tenth, at least one, at most twenty."""
    return max(1, min(20, steps // 10))


SCHEMA = "paceline.benchmark/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender over all its repeats: medians of times and rates, means of metrics."""

    name: str
    title: str
    framework: str
    workers: int
    global_batch: int
    worker_batch: int
    steps: int
    samples: int
    epochs: float | None
    total_s: float
    total_s_all: tuple[float, ...]  # by round
    first_step_s: float | None
    first_step_s_all: tuple[float | None, ...]
    steady_samples_per_s: float | None
    steady_samples_per_s_all: tuple[float | None, ...]
    warm_up: str
    speedup_total: Estimate
    efficiency_total: Estimate
    speedup_steady: Estimate | None
    efficiency_steady: Estimate | None
    metrics: dict[str, float | None]
    quality: Estimate | None
    quality_difference: Estimate | None  # to the baseline; None for the baseline itself
    history: tuple[HistoryPoint, ...]  # of the repeat with the median time
    cluster: Cluster | None
    facts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    paceline: str
    task: str
    baseline: str  # its name
    subject: str  # the contender whose speedup is reported
    num_workers: int  # of the subject, as are the five that follow
    speedup: float
    efficiency: float
    speedup_steady: float | None
    efficiency_steady: float | None
    accuracy_lost: float | None  # the baseline's accuracy less the subject's; None: there is none
    repeats: int
    global_batch: int | None  # None: not the same for all
    quality: Quality | None
    rows: dict[str, Row]  # by name, baseline first
    says: tuple[str, ...]  # in sentences
    warnings: tuple[str, ...]
    how: dict[str, str]  # how it was measured, by topic
    machine: Machine
    order: tuple[str, ...]  # as they were started
    schema: str = SCHEMA


def dumps(benchmark: Benchmark) -> str:
    return json.dumps(finite(to_json(benchmark)), indent=2, allow_nan=False) + "\n"


def read_benchmark(path: Path) -> Benchmark:
    try:
        benchmark = decode(Benchmark, path.read_text(encoding="utf-8"), schema=SCHEMA)
    except (OSError, ValueError) as error:
        raise DamagedRecordError(f"cannot read {path}: {error}", "run the benchmark again") from error
    assert isinstance(benchmark, Benchmark), "decode(Benchmark, …) builds one"
    return benchmark
