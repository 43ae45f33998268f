"""Who is slow, and is it lasting or passing? From simulated or recorded step times, in words."""

from dataclasses import dataclass

import numpy as np

from paceline.simulate.durations import Nanoseconds

LASTING = 1.2  # times as slow as the fastest, at nine of ten steps
SPIKE = 2.0  # times a worker's own usual step


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    slow: dict[int, float]  # lasting stragglers: times as slow as the fastest worker
    spikes: float  # share of steps that take more than twice the worker's usual time


def speeds_of(compute: Nanoseconds) -> Speeds:
    """`compute` holds workers in rows and steps in columns."""
    usual = np.median(compute, axis=1)
    fastest = max(float(usual.min()), 1.0)
    mostly = np.quantile(compute, 0.1, axis=1)
    slow = {
        rank: float(usual[rank]) / fastest
        for rank in range(len(usual))
        if usual[rank] > LASTING * fastest and mostly[rank] > LASTING * fastest
    }
    spikes = float((compute > SPIKE * np.maximum(usual, 1.0)[:, None]).mean())
    return Speeds(slow=slow, spikes=spikes)


def in_words(speeds: Speeds) -> list[str]:
    found = []
    if speeds.slow:
        each = ", ".join(f"worker {rank} is persistently {x:.1f}x slower" for rank, x in speeds.slow.items())
        found.append(f"{each} than the fastest worker")
    if speeds.spikes >= 0.01:
        found.append(f"{speeds.spikes:.0%} of all steps take more than twice as long as is usual")
    return found or ["all workers are about equally fast, at every step"]
