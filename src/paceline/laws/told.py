"""What does a program that trains say about its run? That which comparisons are made of.

The harness laws compare it with what happened. A harness is any function that
runs a plan and tells; ours runs it in virtual time and reads its own log.
"""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.events.summary import summarise
from paceline.worker.virtual import VirtualRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    gradients: int
    positions: tuple[int, ...]  # the shares of the work that were done
    bytes_out: int
    bytes_in: int
    staleness: tuple[int, ...]  # of every applied gradient, in order; empty without a server
    delays_ns: dict[tuple[int, int], int]  # how long each step was made to take, by (rank, step)
    slept_ns: int  # between steps, neither waiting for others nor working


Harness = Callable[..., Told]


def told_of(done: VirtualRun) -> Told:
    rows = [(rank, row) for rank, mine in done.history.steps.items() for row in mine]
    summary = summarise(done.history)
    return Told(
        gradients=summary.gradients,
        positions=tuple(sorted(row.position for _, row in rows)),
        bytes_out=summary.bytes_out,
        bytes_in=summary.bytes_in,
        staleness=tuple(r.staleness for r in done.history.server if r.op == "apply"),
        delays_ns={(rank, row.step): row.delay_ns for rank, row in rows},
        slept_ns=sum(row.comm_ns for _, row in rows),
    )
