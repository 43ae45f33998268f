"""Simulation results: `Outline` in nanoseconds, and `Prediction` with the numbers of a run's result.json."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.simulate.profile import Profile

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trace:
    """The rank and time of every visible gradient; simultaneous ones in the order of ranks."""

    ranks: Integers
    at_ns: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The result of one simulation, before conversion to a user's units."""

    total_ns: int
    compute_ns: int  # of all workers, abandoned gradients included
    wait_ns: int  # of all workers: for each other and, behind a server, for its answer
    steps: tuple[int, ...]  # gradients of each worker that count
    samples: int
    syncs: int  # exchanges of all workers together
    bytes_each_way: int
    trace: Trace
    staleness: dict[int, int] | None = None  # how often each value; None: nothing is ever stale
    abandoned: int = 0
    bytes_in_vain: int = 0  # parameters read for gradients that were abandoned


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    total_s: float
    samples_per_s: float
    gradients_per_s: float
    waiting: float  # share of the workers' time
    mean_staleness: float | None
    staleness: dict[str, int] | None  # as in result.json
    bytes_out: int
    bytes_in: int
    steps: tuple[int, ...]  # by worker
    abandoned: int  # gradients made in vain
    events: int  # simulated: gradients, counted or abandoned


def predicted(outline: Outline) -> Prediction:
    total_s = outline.total_ns / 1e9
    gradients = sum(outline.steps)
    busy_ns = outline.compute_ns + outline.wait_ns
    staleness = None
    if outline.staleness is not None:
        staleness = {str(value): outline.staleness[value] for value in sorted(outline.staleness)}
    return Prediction(
        total_s=total_s,
        samples_per_s=outline.samples / total_s if total_s else 0.0,
        gradients_per_s=gradients / total_s if total_s else 0.0,
        waiting=outline.wait_ns / busy_ns if busy_ns else 0.0,
        mean_staleness=_mean(outline.staleness),
        staleness=staleness,
        bytes_out=outline.bytes_each_way,
        bytes_in=outline.bytes_each_way + outline.bytes_in_vain,
        steps=outline.steps,
        abandoned=outline.abandoned,
        events=gradients + outline.abandoned,
    )


def ring_bytes(profile: Profile) -> int:
    """The bytes that each worker of an all-reduce sends, and also receives."""
    return 2 * (profile.num_workers - 1) * profile.parameter_bytes // profile.num_workers


def _mean(histogram: dict[int, int] | None) -> float | None:
    if not histogram:
        return None
    return sum(value * count for value, count in histogram.items()) / sum(histogram.values())
