"""Action requests: kinds, phases, partition groups, and what is refused beforehand. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from paceline.plan.codec import Json
from paceline.plan.plan import Launcher, Plan

# Those who are named (`node-1,worker-0`) are on one side, together; all others are on the
# other. A worker that is cut off reaches no node of the other side; what workers send each other stays
# as it is. Of both sides the other one must be able to go on, unless somebody forces it.

_NAME = re.compile(r"(node|worker)-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class PartitionGroup:
    """Those who are cut off."""

    nodes: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"node-{node}" for node in self.nodes), *self.workers)


@dataclass(frozen=True, slots=True)
class BlockRule:
    """What one node is asked to do: whom it does not hear."""

    nodes: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    others: bool = False  # all but those processes


def parse_group(target: str) -> PartitionGroup | None:
    """None: it names somebody who is neither a node nor a worker, or nobody."""
    found = [_NAME.fullmatch(name.strip()) for name in target.split(",")]
    if not all(found):
        return None
    named = [(match[1], int(match[2])) for match in found if match is not None]
    nodes = sorted({number for kind, number in named if kind == "node"})
    workers = sorted({number for kind, number in named if kind == "worker"})
    return PartitionGroup(tuple(nodes), tuple(f"worker-{number}" for number in workers))


def why_not_partitioned(sides: PartitionGroup, pids: Collection[str]) -> str:
    """As far as is known without the coordinator."""
    if missing := [worker for worker in sides.workers if worker not in pids]:
        there = ", ".join(sorted(pids)) or "nobody"
        return f"there is no worker {missing[0]!r}; there are: {there}"
    return ""


def why_too_few_left(
    sides: PartitionGroup,
    *,
    voters: Collection[int],
    answering: Collection[int],
    workers: Collection[str],
    fewest: int,
) -> str:
    """Why too few would be left on the other side, in words; empty: enough."""
    left = [node for node in answering if node in voters and node not in sides.nodes]
    needed = len(voters) // 2 + 1
    if sides.nodes and len(left) < needed:
        return (
            f"the quorum would be lost: {len(left)} of {len(voters)} nodes would be left together, "
            f"and {needed} are needed"
        )
    staying = [name for name in workers if name not in sides.workers]
    if sides.workers and len(staying) < fewest:
        return f"{len(staying)} workers would be left, and the run needs {fewest}"
    return ""


def block_rules(
    sides: PartitionGroup, nodes: Collection[int], pids: Mapping[str, int]
) -> dict[int, BlockRule]:
    """By node. A node that is cut off hears only those who are with it."""
    mine = tuple(pids[worker] for worker in sides.workers)
    found: dict[int, BlockRule] = {}
    for node in nodes:
        if node in sides.nodes:
            others = tuple(other for other in nodes if other not in sides.nodes)
            found[node] = BlockRule(others, mine, others=True)
        elif mine:
            found[node] = BlockRule(pids=mine)
    return found


MAX_HOLD_S = 300.0  # that a worker is held: nobody can forget one for ever
MAX_FACTOR = 100.0


class ActionKind(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    SLOW = "slow"
    KILL = "kill"
    PARTITION = "partition"
    HEAL = "heal"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


FAULTS = (
    ActionKind.PAUSE,
    ActionKind.SLOW,
    ActionKind.KILL,
    ActionKind.PARTITION,
)  # what a dashboard allows only where it may
WORKER_ACTIONS = (ActionKind.PAUSE, ActionKind.RESUME, ActionKind.SLOW, ActionKind.KILL)
TIMED_ACTIONS = (ActionKind.PAUSE, ActionKind.SLOW, ActionKind.PARTITION)  # for so many seconds


class Phase(StrEnum):
    REQUESTED = "requested"
    ACCEPTED = "accepted"  # it was checked, and the coordinator, if there is one, has noted it
    APPLIED = "applied"  # it was done
    EFFECT_SEEN = "effect_seen"  # the run's own log says what came of it
    REFUSED = "refused"
    FAILED = "failed"


LAST_PHASES = (Phase.EFFECT_SEEN, Phase.REFUSED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    id: str  # whoever asks twice with the same one asks once
    deed: ActionKind
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


def refusal(wanted: ActionRequest, plan: Plan, pids: Mapping[str, int], *, is_over: bool) -> str:
    """Why it cannot be done, in words; empty: it can."""
    if is_over:
        return "the run is over"
    if plan.launcher is not Launcher.LOCAL and wanted.deed is not ActionKind.STOP:
        return f"its workers are no processes of this machine (launcher {plan.launcher.value})"
    if wanted.deed in WORKER_ACTIONS and wanted.worker not in pids:
        there = ", ".join(sorted(pids)) or "nobody"
        return f"there is no worker {wanted.worker!r}; there are: {there}"
    if wanted.deed in TIMED_ACTIONS and not 0 < wanted.for_s <= MAX_HOLD_S:
        return f"it may last up to {MAX_HOLD_S:g} s, and {wanted.for_s:g} s were asked for"
    if wanted.deed is ActionKind.SLOW and not 1 < wanted.factor <= MAX_FACTOR:
        return f"factor is {wanted.factor:g}, but it must be above 1, up to {MAX_FACTOR:g}"
    return _refusal_by_kind(wanted, plan, pids)


def _refusal_by_kind(wanted: ActionRequest, plan: Plan, pids: Mapping[str, int]) -> str:
    if wanted.deed in (ActionKind.PARTITION, ActionKind.HEAL) and plan.elastic is None:
        return "the run is not elastic: it has no coordinator that anybody could be cut off from"
    if wanted.deed is ActionKind.PARTITION:
        return _partition_refusal(wanted.worker, pids)
    if wanted.deed is ActionKind.CHECKPOINT and plan.elastic is None:
        return "only elastic runs save when they are asked to; this one saves by --checkpoint-every"
    if wanted.deed is ActionKind.KILL and plan.elastic is None and not wanted.is_forced:
        return "the run is not elastic: it would end; say force to do it nevertheless"
    return ""


def _partition_refusal(target: str, pids: Mapping[str, int]) -> str:
    sides = parse_group(target)
    if sides is None:
        return f"{target!r} names nobody who can be cut off; say for example node-1,worker-0"
    return why_not_partitioned(sides, pids)
