"""What is asked of a run, how far has it come, and what is refused before anything is touched? Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from paceline.app.actions.sides import sides_in, why_not_cut
from paceline.plan.codec import Json
from paceline.plan.plan import Launcher, Plan

LONGEST_S = 300.0  # that a worker is held: nobody can forget one for ever
MOST_FACTOR = 100.0


class Deed(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    SLOW = "slow"
    KILL = "kill"
    PARTITION = "partition"
    HEAL = "heal"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


FAULTS = (Deed.PAUSE, Deed.SLOW, Deed.KILL, Deed.PARTITION)  # what a dashboard allows only where it may
OF_A_WORKER = (Deed.PAUSE, Deed.RESUME, Deed.SLOW, Deed.KILL)
LASTING = (Deed.PAUSE, Deed.SLOW, Deed.PARTITION)  # for so many seconds


class Phase(StrEnum):
    REQUESTED = "requested"
    ACCEPTED = "accepted"  # it was checked, and the coordinator, if there is one, has noted it
    APPLIED = "applied"  # it was done
    EFFECT_SEEN = "effect_seen"  # the run's own log says what came of it
    REFUSED = "refused"
    FAILED = "failed"


LAST_PHASES = (Phase.EFFECT_SEEN, Phase.REFUSED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    id: str  # whoever asks twice with the same one asks once
    deed: Deed
    worker: str = ""  # empty: the run; partition: names of workers and nodes, with commas
    factor: float = 4.0  # slow: times as long
    for_s: float = 30.0  # pause, slow, partition
    is_forced: bool = False  # although it ends the run, or loses the quorum
    by: str = "unknown"
    source: str = "api"  # ui, cli, api


@dataclass(frozen=True, slots=True)
class Step:
    phase: Phase
    note: str
    at_s: float  # since it was asked for

    def json(self) -> dict[str, Json]:
        return dict(asdict(self))


def refusal(wanted: Wanted, plan: Plan, pids: Mapping[str, int], *, is_over: bool) -> str:
    """Why it cannot be done, in words; empty: it can."""
    if is_over:
        return "the run is over"
    if plan.launcher is not Launcher.LOCAL and wanted.deed is not Deed.STOP:
        return f"its workers are no processes of this machine (launcher {plan.launcher.value})"
    if wanted.deed in OF_A_WORKER and wanted.worker not in pids:
        there = ", ".join(sorted(pids)) or "nobody"
        return f"there is no worker {wanted.worker!r}; there are: {there}"
    if wanted.deed in LASTING and not 0 < wanted.for_s <= LONGEST_S:
        return f"it may last up to {LONGEST_S:g} s, and {wanted.for_s:g} s were asked for"
    if wanted.deed is Deed.SLOW and not 1 < wanted.factor <= MOST_FACTOR:
        return f"factor is {wanted.factor:g}, but it must be above 1, up to {MOST_FACTOR:g}"
    return _refusal_by_kind(wanted, plan, pids)


def _refusal_by_kind(wanted: Wanted, plan: Plan, pids: Mapping[str, int]) -> str:
    if wanted.deed in (Deed.PARTITION, Deed.HEAL) and plan.elastic is None:
        return "the run is not elastic: it has no coordinator that anybody could be cut off from"
    if wanted.deed is Deed.PARTITION:
        return _refusal_of_cut(wanted.worker, pids)
    if wanted.deed is Deed.CHECKPOINT and plan.elastic is None:
        return "only elastic runs save when they are asked to; this one saves by --checkpoint-every"
    if wanted.deed is Deed.KILL and plan.elastic is None and not wanted.is_forced:
        return "the run is not elastic: it would end; say force to do it nevertheless"
    return ""


def _refusal_of_cut(target: str, pids: Mapping[str, int]) -> str:
    sides = sides_in(target)
    if sides is None:
        return f"{target!r} names nobody who can be cut off; say for example node-1,worker-0"
    return why_not_cut(sides, pids)
