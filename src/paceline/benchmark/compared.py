"""What is in a benchmark's comparison.json? Everything that its page shows.

`speedup` and `efficiency` at the top are those of `subject`, by total time: the baseline's seconds over its
own, and that over its workers. Beside them is the same of the steady part. What is not known is null.
"""

import json
from dataclasses import dataclass

from paceline.benchmark.measured import Cluster, Seen
from paceline.plan.codec import to_json
from paceline.report.comparison import Estimate, Machine, Quality, finite

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
    history: tuple[Seen, ...]  # of the repeat with the median time
    cluster: Cluster | None
    facts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    paceline: str
    task: str
    baseline: str  # its name
    subject: str  # whose speedup is asked for
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
