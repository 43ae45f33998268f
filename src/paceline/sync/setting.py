"""On what do adaptive workers agree? On a way, and on how much of the work each of them does.

`Terms` is what the plan says about that; `Setting` is what holds at present,
and `Adapted` how a change of it is recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from paceline.sync.deal import deal


class Way(StrEnum):
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
class Setting:
    """A way with its shares: samples of a step, or local steps of a round, by worker."""

    way: Way
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What does not change during a run."""

    allowed: Allowed
    batch_sizes: tuple[int, ...]
    period: int  # steps in a round of local steps

    @property
    def ways(self) -> tuple[Way, ...]:
        """What may be chosen, the least intrusive first."""
        if self.allowed is Allowed.BATCH:
            return (Way.BATCH,)
        if self.allowed is Allowed.LOCAL_STEPS:
            return (Way.LOCAL_STEPS,)
        return tuple(Way) if self.has_equal_shares() else (Way.SSGD, Way.BATCH)

    def has_equal_shares(self) -> bool:
        """Local steps are dealt out in whole shares, so these must be equal."""
        return len(set(self.batch_sizes)) == 1

    def name_of(self, worker: int) -> str:
        return f"worker {worker}"

    def as_planned(self, way: Way) -> Setting:
        if way is Way.LOCAL_STEPS:
            return Setting(way, (self.period,) * len(self.batch_sizes))
        return Setting(way, self.batch_sizes)

    def by_speed(self, way: Way, seconds: Sequence[float]) -> Setting:
        """`seconds` that each worker takes per sample."""
        match way:
            case Way.SSGD:
                return self.as_planned(way)
            case Way.BATCH:
                # Batch normalisation cannot do with a single sample.
                least = min(2, *self.batch_sizes)
                return Setting(way, deal(sum(self.batch_sizes), seconds, least=least))
            case Way.LOCAL_STEPS:
                return Setting(way, deal(self.period * len(self.batch_sizes), seconds))
            case _:
                assert_never(way)

    def in_a_round(self, setting: Setting, steps: int) -> tuple[int, ...]:
        """Local steps by worker in a round of so many steps; the last one may be shorter than usual."""
        if steps == self.period:
            return setting.shares
        return deal(steps * len(self.batch_sizes), [1 / share for share in setting.shares])


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A decision that changed something, as it is recorded."""

    step: int  # the run's steps done by then
    was: Way
    now: Setting
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


def setting_of(fields: Mapping[str, object]) -> Setting:
    """What an event `adapted` changed to."""
    return Setting(Way(str(fields["to"])), tuple(int(share) for share in str(fields["shares"]).split(",")))
