"""Adaptive settings: a synchronization policy, and the share of the work of each worker.

`AdaptiveTerms` holds what the plan fixes for the run; `AdaptiveSetting` is what
holds at present, and `Adapted` is the record of a change. `balance_units` computes
shares by speed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heapreplace
from typing import assert_never

# Unit by unit, each to whoever would be done with it first. That is the best
# there is for equal units (and d'Hondt's way of giving out seats); all but the
# last few units follow at once from the workers' speeds.

_SHORTEST_S = 1e-12  # a worker whose work takes no time is still only so fast


def balance_units(total: int, seconds: Sequence[float], *, least: int = 1) -> tuple[int, ...]:
    """Units by worker, `total` in all and at least `least` each; `seconds` is what one unit takes each."""
    workers = len(seconds)
    assert total >= least * workers, "there is enough to give everybody the least"
    if total == least * workers:
        return (least,) * workers
    costs = seconds if min(seconds) >= _SHORTEST_S else [max(cost, _SHORTEST_S) for cost in seconds]
    shares = _whole_shares(total, [1 / cost for cost in costs], least)
    heap = [
        ((share + 1) * cost, worker) for worker, (share, cost) in enumerate(zip(shares, costs, strict=True))
    ]
    heapify(heap)
    for _ in range(total - sum(shares)):
        _, worker = heap[0]
        shares[worker] += 1
        heapreplace(heap, ((shares[worker] + 1) * costs[worker], worker))
    return tuple(shares)


def _whole_shares(total: int, speeds: Sequence[float], least: int) -> list[int]:
    """What is due to each worker by its speed, rounded down; who is due less than the least gets that."""
    speed = sum(speeds)
    due = [total * own / speed for own in speeds]
    if min(due) >= least:
        return [int(own) for own in due]
    enough = [worker for worker, own in enumerate(due) if own >= least]
    shares = [least] * len(speeds)
    if enough:
        rest = total - least * (len(speeds) - len(enough))
        more = _whole_shares(rest, [speeds[worker] for worker in enough], least)
        for worker, own in zip(enough, more, strict=True):
            shares[worker] = own
    return shares


class SyncPolicy(StrEnum):
    """How the workers agree at present, the least intrusive first."""

    SSGD = "ssgd"  # the planned batches, a meeting at every step
    BATCH = "batch"  # as many samples in all, cut by speed: computes what ssgd computes
    LOCAL_STEPS = "local-steps"  # a meeting every few steps, of which fast workers do more


class Allowed(StrEnum):
    """What the user lets us choose from (`--adaptive`)."""

    AUTO = "auto"
    BATCH = "batch"
    LOCAL_STEPS = "local-steps"


@dataclass(frozen=True, slots=True)
class AdaptiveSetting:
    """A way with its shares: samples of a step, or local steps of a round, by worker."""

    way: SyncPolicy
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveTerms:
    """What does not change during a run."""

    allowed: Allowed
    batch_sizes: tuple[int, ...]
    period: int  # steps in a round of local steps

    @property
    def ways(self) -> tuple[SyncPolicy, ...]:
        """What may be chosen, the least intrusive first."""
        if self.allowed is Allowed.BATCH:
            return (SyncPolicy.BATCH,)
        if self.allowed is Allowed.LOCAL_STEPS:
            return (SyncPolicy.LOCAL_STEPS,)
        return tuple(SyncPolicy) if self.has_equal_shares() else (SyncPolicy.SSGD, SyncPolicy.BATCH)

    def has_equal_shares(self) -> bool:
        """Local steps are dealt out in whole shares, so these must be equal."""
        return len(set(self.batch_sizes)) == 1

    def name_of(self, worker: int) -> str:
        return f"worker {worker}"

    def as_planned(self, way: SyncPolicy) -> AdaptiveSetting:
        if way is SyncPolicy.LOCAL_STEPS:
            return AdaptiveSetting(way, (self.period,) * len(self.batch_sizes))
        return AdaptiveSetting(way, self.batch_sizes)

    def by_speed(self, way: SyncPolicy, seconds: Sequence[float]) -> AdaptiveSetting:
        """`seconds` that each worker takes per sample."""
        match way:
            case SyncPolicy.SSGD:
                return self.as_planned(way)
            case SyncPolicy.BATCH:
                # Batch normalisation cannot do with a single sample.
                least = min(2, *self.batch_sizes)
                return AdaptiveSetting(way, balance_units(sum(self.batch_sizes), seconds, least=least))
            case SyncPolicy.LOCAL_STEPS:
                return AdaptiveSetting(way, balance_units(self.period * len(self.batch_sizes), seconds))
            case _:
                assert_never(way)

    def in_a_round(self, setting: AdaptiveSetting, steps: int) -> tuple[int, ...]:
        """Local steps by worker in a round of so many steps; the last one may be shorter than usual."""
        if steps == self.period:
            return setting.shares
        return balance_units(steps * len(self.batch_sizes), [1 / share for share in setting.shares])


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A decision that changed something, as it is recorded."""

    step: int  # the run's steps done by then
    was: SyncPolicy
    now: AdaptiveSetting
    reason: str

    def fields(self) -> dict[str, int | str]:
        """Of the event `adapted`."""
        return {
            "step": self.step,
            "from": self.was.value,
            "to": self.now.way.value,
            "shares": ",".join(map(str, self.now.shares)),
            "reason": self.reason,
        }


def setting_from_event(fields: Mapping[str, object]) -> AdaptiveSetting:
    """What an event `adapted` changed to."""
    return AdaptiveSetting(
        SyncPolicy(str(fields["to"])), tuple(int(share) for share in str(fields["shares"]).split(","))
    )
