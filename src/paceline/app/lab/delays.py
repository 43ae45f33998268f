"""By how much was a training step late? The time between two commits of a worker, beyond its usual one."""

from collections.abc import Collection
from itertools import pairwise

from paceline.app.lab.expect import Expectation, at_most, percentile
from paceline.app.lab.served import applied_ns
from paceline.app.lab.training import commits_ns
from paceline.events.read import History


def longest_delay_s(history: History, from_ns: int, to_ns: int, *, without: Collection[int] = ()) -> float:
    """Of all workers (but some), among the steps that they committed between these times."""
    return max(
        (_longest_s(history, rank, from_ns, to_ns) for rank in history.steps if rank not in without),
        default=float("inf"),
    )


def _longest_s(history: History, rank: int, from_ns: int, to_ns: int) -> float:
    gaps = [(later, (later - sooner) / 1e9) for sooner, later in pairwise(commits_ns(history, rank))]
    usual_s = percentile([gap for _, gap in gaps], 0.5)
    # One that committed nothing at all in that time is late by more than we know.
    return max((gap for later, gap in gaps if from_ns <= later <= to_ns), default=float("inf")) - usual_s


def longest_pause_s(history: History, from_ns: int) -> float:
    """The longest time in which nobody committed anything, or no server applied anything."""
    committed = [end for rank in history.steps for end in commits_ns(history, rank)]
    ends = sorted(end for end in applied_ns(history) or committed if end >= from_ns)
    return max(((later - sooner) / 1e9 for sooner, later in pairwise(ends)), default=float("inf"))


def not_delayed(history: History, from_ns: int, to_ns: int, after: str) -> Expectation:
    delay_s = longest_delay_s(history, from_ns, to_ns)
    return at_most(f"a training step is delayed {after} by, at the latest", delay_s, 0.25, "s")
