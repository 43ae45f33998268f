"""What is known of one run of a benchmark, whoever trained? The same numbers for every framework.

Two times matter, and neither stands for the other. `total_s` runs from the call to its result: processes,
imports, the cluster and the training. The steady rate leaves the beginning out: what a long run would see.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import DamagedRecordError
from paceline.plan.codec import decode, to_json
from paceline.report.comparison import finite

SCHEMA = "paceline.benchmark-run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was known after so many epochs."""

    epoch: float  # 1.0: after the first one; 0.5: in the middle of it
    seconds: float  # since the first step began
    metrics: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a cluster had in all."""

    nodes: int
    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    name: str  # of its files: baseline, ray, ssgd
    title: str  # for people, short: it stands beside a bar
    framework: str  # whose loop it was: keras, torch, paceline
    workers: int
    global_batch: int  # samples of a step, over all workers
    worker_batch: int  # of which each worker takes so many
    steps: int  # of each worker
    samples: int  # of all workers together
    epochs: float | None  # None: nobody knows how many samples there are
    total_s: float  # from the call to its result
    first_step_s: float | None  # from the call to the beginning of the first step
    steady_samples_per_s: float | None  # None: too short to have a steady part
    warm_up: str  # what the steady rate leaves out: "the first 5 steps", "the first epoch"
    metrics: dict[str, float | None]  # of the finished model
    history: tuple[Seen, ...] = ()
    cluster: Cluster | None = None  # None: no cluster had part in it
    facts: dict[str, str] = field(default_factory=dict)  # whatever else a reader should know
    started_unix_s: float = 0.0
    schema: str = SCHEMA


def write(run: Measured, path: Path) -> None:
    text = json.dumps(finite(to_json(run)), indent=2, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> Measured:
    try:
        found = decode(Measured, path.read_text(encoding="utf-8"), schema=SCHEMA)
    except (OSError, ValueError) as error:
        raise DamagedRecordError(f"cannot read {path}: {error}", "run the benchmark again") from error
    assert isinstance(found, Measured), "decode(Measured, …) builds one"
    return found


def steady_rate(starts_s: list[float], batch: int, warm_up: int) -> float | None:
    """Samples/s of one worker from the times at which its steps began, after so many of them."""
    counted = len(starts_s) - 1 - warm_up
    if counted < 1 or starts_s[-1] <= starts_s[warm_up]:
        return None
    return batch * counted / (starts_s[-1] - starts_s[warm_up])


def usual_warm_up(steps: int) -> int:
    """Steps that are left out: a tenth, at least one, at most twenty."""
    return max(1, min(20, steps // 10))
