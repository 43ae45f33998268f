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

_MIN_UNIT_S = 1e-12  # keeps speeds finite for a worker whose work takes no time


def balance_units(total: int, seconds: Sequence[float], *, minimum: int = 1) -> tuple[int, ...]:
    """Units by worker, `total` in all and at least `minimum` each; worker r takes `seconds[r]` per unit.

    Each unit goes to the worker that would finish it first. For equal units that
    minimises the time of the slowest worker (it is d'Hondt's method). All but the
    last few units follow directly from the workers' speeds.
    """
    workers = len(seconds)
    assert total >= minimum * workers, "there is enough to give every worker the minimum"
    if total == minimum * workers:
        return (minimum,) * workers
    costs = seconds if min(seconds) >= _MIN_UNIT_S else [max(cost, _MIN_UNIT_S) for cost in seconds]
    shares = _whole_shares(total, [1 / cost for cost in costs], minimum)
    heap = [
        ((share + 1) * cost, worker) for worker, (share, cost) in enumerate(zip(shares, costs, strict=True))
    ]
    heapify(heap)
    for _ in range(total - sum(shares)):
        _, worker = heap[0]
        shares[worker] += 1
        heapreplace(heap, ((shares[worker] + 1) * costs[worker], worker))
    return tuple(shares)


def _whole_shares(total: int, speeds: Sequence[float], minimum: int) -> list[int]:
    """Shares proportional to speed, rounded down; a worker whose share is below the minimum gets that."""
    speed = sum(speeds)
    due = [total * own / speed for own in speeds]
    if min(due) >= minimum:
        return [int(own) for own in due]
    enough = [worker for worker, own in enumerate(due) if own >= minimum]
    shares = [minimum] * len(speeds)
    if enough:
        rest = total - minimum * (len(speeds) - len(enough))
        more = _whole_shares(rest, [speeds[worker] for worker in enough], minimum)
        for worker, own in zip(enough, more, strict=True):
            shares[worker] = own
    return shares


class SyncPolicy(StrEnum):
    """The synchronization policies of adaptive mode, the least intrusive first."""

    SSGD = "ssgd"  # the planned batches, averaged at every step
    BATCH = "batch"  # as many samples in all, split by speed: computes what ssgd computes
    LOCAL_STEPS = "local-steps"  # averaged every few steps, of which fast workers do more


class Allowed(StrEnum):
    """The policies that the user allows (`--adaptive`)."""

    AUTO = "auto"
    BATCH = "batch"
    LOCAL_STEPS = "local-steps"


@dataclass(frozen=True, slots=True)
class AdaptiveSetting:
    """A policy with its shares: samples of a step, or local steps of a round, by worker."""

    policy: SyncPolicy
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveTerms:
    """The part of the plan that adaptive decisions depend on; fixed for a run."""

    allowed: Allowed
    batch_sizes: tuple[int, ...]
    period: int  # steps in a round of local steps

    @property
    def policies(self) -> tuple[SyncPolicy, ...]:
        """The policies to choose from, the least intrusive first."""
        if self.allowed is Allowed.BATCH:
            return (SyncPolicy.BATCH,)
        if self.allowed is Allowed.LOCAL_STEPS:
            return (SyncPolicy.LOCAL_STEPS,)
        return tuple(SyncPolicy) if self.has_equal_shares() else (SyncPolicy.SSGD, SyncPolicy.BATCH)

    def has_equal_shares(self) -> bool:
        """Local steps are assigned in whole shares, so these must be equal."""
        return len(set(self.batch_sizes)) == 1

    def name_of(self, worker: int) -> str:
        return f"worker {worker}"

    def as_planned(self, policy: SyncPolicy) -> AdaptiveSetting:
        if policy is SyncPolicy.LOCAL_STEPS:
            return AdaptiveSetting(policy, (self.period,) * len(self.batch_sizes))
        return AdaptiveSetting(policy, self.batch_sizes)

    def by_speed(self, policy: SyncPolicy, seconds: Sequence[float]) -> AdaptiveSetting:
        """Shares for workers that take `seconds` per sample."""
        match policy:
            case SyncPolicy.SSGD:
                return self.as_planned(policy)
            case SyncPolicy.BATCH:
                # Batch normalisation needs two samples.
                minimum = min(2, *self.batch_sizes)
                shares = balance_units(sum(self.batch_sizes), seconds, minimum=minimum)
                return AdaptiveSetting(policy, shares)
            case SyncPolicy.LOCAL_STEPS:
                return AdaptiveSetting(policy, balance_units(self.period * len(self.batch_sizes), seconds))
            case _:
                assert_never(policy)

    def in_a_round(self, setting: AdaptiveSetting, steps: int) -> tuple[int, ...]:
        """Local steps by worker in a round of `steps` steps; the last round may be shorter than `period`."""
        if steps == self.period:
            return setting.shares
        return balance_units(steps * len(self.batch_sizes), [1 / share for share in setting.shares])


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A change of setting, as the event `adapted` records it."""

    step: int  # finished steps of the run
    was: SyncPolicy
    now: AdaptiveSetting
    reason: str

    def fields(self) -> dict[str, int | str]:
        """The fields of the event `adapted`."""
        return {
            "step": self.step,
            "from": self.was.value,
            "to": self.now.policy.value,
            "shares": ",".join(map(str, self.now.shares)),
            "reason": self.reason,
        }


def setting_from_event(fields: Mapping[str, object]) -> AdaptiveSetting:
    """The setting that an event `adapted` changed to."""
    return AdaptiveSetting(
        SyncPolicy(str(fields["to"])), tuple(int(share) for share in str(fields["shares"]).split(","))
    )
