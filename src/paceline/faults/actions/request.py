"""Action requests: kinds, phases, partition groups, and what is refused beforehand. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from paceline.plan.codec import Json
from paceline.plan.plan import Launcher, Plan

# A partition separates the named nodes and workers (`node-1,worker-0`) from all others. A separated worker
# reaches no node of the other side; traffic between workers is not affected. The other side must be able to
# continue, unless the request is forced.

_NAME = re.compile(r"(node|worker)-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class PartitionGroup:
    """The separated nodes and workers."""

    nodes: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"node-{node}" for node in self.nodes), *self.workers)


@dataclass(frozen=True, slots=True)
class BlockRule:
    """The peers and processes that one node ignores."""

    nodes: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    others: bool = False  # ignore all processes except those in `pids`


def parse_group(target: str) -> PartitionGroup | None:
    """None: a name is neither a node nor a worker, or there is none."""
    matches = [_NAME.fullmatch(name.strip()) for name in target.split(",")]
    if not all(matches):
        return None
    named = [(match[1], int(match[2])) for match in matches if match is not None]
    nodes = sorted({number for kind, number in named if kind == "node"})
    workers = sorted({number for kind, number in named if kind == "worker"})
    return PartitionGroup(tuple(nodes), tuple(f"worker-{number}" for number in workers))


def why_not_partitioned(group: PartitionGroup, pids: Collection[str]) -> str:
    """The reason to refuse that is known without the coordinator; empty: none."""
    if missing := [worker for worker in group.workers if worker not in pids]:
        available = ", ".join(sorted(pids)) or "none"
        return f"there is no worker {missing[0]!r}; there are: {available}"
    return ""


def why_too_few_left(
    group: PartitionGroup,
    *,
    voters: Collection[int],
    answering: Collection[int],
    workers: Collection[str],
    min_workers: int,
) -> str:
    """Why too few would be left on the other side; empty: enough."""
    left = [node for node in answering if node in voters and node not in group.nodes]
    needed = len(voters) // 2 + 1
    if group.nodes and len(left) < needed:
        return (
            f"the quorum would be lost: {len(left)} of {len(voters)} nodes would stay connected, and "
            f"{needed} are needed"
        )
    remaining = [name for name in workers if name not in group.workers]
    if group.workers and len(remaining) < min_workers:
        return f"{len(remaining)} workers would be left, and the run needs {min_workers}"
    return ""


def block_rules(
    group: PartitionGroup, nodes: Collection[int], pids: Mapping[str, int]
) -> dict[int, BlockRule]:
    """By node. A separated node accepts only its own side."""
    own_pids = tuple(pids[worker] for worker in group.workers)
    rules: dict[int, BlockRule] = {}
    for node in nodes:
        if node in group.nodes:
            rest = tuple(other for other in nodes if other not in group.nodes)
            rules[node] = BlockRule(rest, own_pids, others=True)
        elif own_pids:
            rules[node] = BlockRule(pids=own_pids)
    return rules


MAX_HOLD_S = 300.0  # a stopped worker always continues after this time
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


# A dashboard allows these only with --allow-faults, or for runs of this machine.
FAULTS = (ActionKind.PAUSE, ActionKind.SLOW, ActionKind.KILL, ActionKind.PARTITION)
WORKER_ACTIONS = (ActionKind.PAUSE, ActionKind.RESUME, ActionKind.SLOW, ActionKind.KILL)
TIMED_ACTIONS = (ActionKind.PAUSE, ActionKind.SLOW, ActionKind.PARTITION)  # last for `for_s` seconds


class Phase(StrEnum):
    REQUESTED = "requested"
    ACCEPTED = "accepted"  # checked, and recorded by the coordinator, if there is one
    APPLIED = "applied"  # carried out
    EFFECT_SEEN = "effect_seen"  # seen in the run's own log
    REFUSED = "refused"
    FAILED = "failed"


LAST_PHASES = (Phase.EFFECT_SEEN, Phase.REFUSED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    id: str  # idempotency key
    kind: ActionKind
    worker: str = ""  # empty: the run; partition: names of workers and nodes, with commas
    factor: float = 4.0  # slow: times as long
    for_s: float = 30.0  # pause, slow, partition
    is_forced: bool = False  # even if it ends the run, or loses the quorum
    by: str = "unknown"
    source: str = "api"  # ui, cli, api


@dataclass(frozen=True, slots=True)
class Step:
    phase: Phase
    note: str
    at_s: float  # since the request

    def json(self) -> dict[str, Json]:
        return dict(asdict(self))


def refusal(request: ActionRequest, plan: Plan, pids: Mapping[str, int], *, is_over: bool) -> str:
    """Why the request is refused; empty: it is not."""
    if is_over:
        return "the run has ended"
    if plan.launcher is not Launcher.LOCAL and request.kind is not ActionKind.STOP:
        return f"its workers are not processes of this machine (launcher {plan.launcher.value})"
    if request.kind in WORKER_ACTIONS and request.worker not in pids:
        available = ", ".join(sorted(pids)) or "none"
        return f"there is no worker {request.worker!r}; there are: {available}"
    if request.kind in TIMED_ACTIONS and not 0 < request.for_s <= MAX_HOLD_S:
        return f"the duration is {request.for_s:g} s, but the maximum is {MAX_HOLD_S:g} s"
    if request.kind is ActionKind.SLOW and not 1 < request.factor <= MAX_FACTOR:
        return f"factor is {request.factor:g}, but it must be above 1, up to {MAX_FACTOR:g}"
    return _refusal_by_kind(request, plan, pids)


def _refusal_by_kind(request: ActionRequest, plan: Plan, pids: Mapping[str, int]) -> str:
    if request.kind in (ActionKind.PARTITION, ActionKind.HEAL) and plan.elastic is None:
        return "the run is not elastic: it has no coordinator, so it cannot be partitioned"
    if request.kind is ActionKind.PARTITION:
        return _partition_refusal(request.worker, pids)
    if request.kind is ActionKind.CHECKPOINT and plan.elastic is None:
        return "only elastic runs write a checkpoint on request; this one uses --checkpoint-every"
    if request.kind is ActionKind.KILL and plan.elastic is None and not request.is_forced:
        return "the run is not elastic, so this would end it; use --force to do it anyway"
    return ""


def _partition_refusal(target: str, pids: Mapping[str, int]) -> str:
    group = parse_group(target)
    if group is None:
        return f"{target!r} cannot be partitioned; name nodes or workers, for example node-1,worker-0"
    return why_not_partitioned(group, pids)
