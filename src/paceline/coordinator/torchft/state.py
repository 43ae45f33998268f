"""Quorums of torchft jobs: the replicated record of each job, and the rule of the next quorum.

Each quorum is in the log before any member receives it. A member whose answer was lost with a
leader gets the same quorum from the next one, which finds it by the nonce of the request. The
quorum id is a log index, and changes only when the members change or one of them could not commit.

The rule (`next_quorum`) is torchft's, or stricter. If all members of the last quorum request the
next one, they and all other requesters form it, at once. Otherwise at least `min_replicas` must
request it, and more than half of the live replicas; live replicas that have not requested it are
awaited, up to a limit. A replica that has been silent too long, or did not request it, is never
in a quorum.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.state import results
from paceline.coordinator.state.model import LighthouseRecord
from paceline.coordinator.state.results import ApplyContext

DEFAULT_MIN_REPLICAS = 1
DEFAULT_JOIN_TIMEOUT_MS = 60_000  # this and the next are what torchft's own lighthouse does
DEFAULT_HEARTBEAT_TIMEOUT_MS = 5_000
MAX_JOBS = 100
MAX_REPLICAS = 10_000
MAX_TIMEOUT_MS = 86_400_000
_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,62}")


def open_lighthouse(context: ApplyContext, request: pb.OpenLighthouse) -> pb.Lighthouse | pb.Refusal:
    existing = context.state.lighthouses.get(request.job)
    refusal = (
        _why_not_open(context, request) if existing is None else _why_not_same(request, existing.lighthouse)
    )
    if refusal is not None:
        return refusal
    if existing is not None:
        return existing.lighthouse
    lighthouse = pb.Lighthouse(
        job=request.job,
        min_replicas=request.min_replicas or DEFAULT_MIN_REPLICAS,
        join_timeout_ms=request.join_timeout_ms or DEFAULT_JOIN_TIMEOUT_MS,
        heartbeat_timeout_ms=request.heartbeat_timeout_ms or DEFAULT_HEARTBEAT_TIMEOUT_MS,
        opened=context.index,
    )
    context.state.lighthouses[request.job] = LighthouseRecord(lighthouse)
    context.changed(lighthouse)
    return lighthouse


def issue(context: ApplyContext, request: pb.IssueQuorum) -> pb.IssuedQuorum | pb.Refusal:
    record = context.state.lighthouses.get(request.job)
    if record is None:
        return not_open(request.job)
    refusal = _why_not_issue(record, request)
    if refusal is not None:
        return refusal
    names = [entry.member.replica_id for entry in request.seats]
    has_failed = any(entry.member.commit_failures > 0 for entry in request.seats)
    if has_failed or names != list(record.lighthouse.replicas):
        record.lighthouse = _with_members(record.lighthouse, names, context)
        context.changed(record.lighthouse)  # not for steps: they would flood the change feed
    record.issued = pb.IssuedQuorum(
        round=context.index,
        quorum_id=record.lighthouse.quorum_id,
        seats=request.seats,
        created_ms=context.now_ms,
    )
    return record.issued


def _with_members(lighthouse: pb.Lighthouse, names: Sequence[str], context: ApplyContext) -> pb.Lighthouse:
    """A new message: one that is changed in place keeps the memory of its old values."""
    return pb.Lighthouse(
        job=lighthouse.job,
        min_replicas=lighthouse.min_replicas,
        join_timeout_ms=lighthouse.join_timeout_ms,
        heartbeat_timeout_ms=lighthouse.heartbeat_timeout_ms,
        quorum_id=context.index,
        replicas=names,
        since_ms=context.now_ms,
        opened=lighthouse.opened,
    )


def forget(context: ApplyContext, request: pb.ForgetLighthouse) -> pb.Lighthouse | pb.Refusal:
    record = context.state.lighthouses.pop(request.job, None)
    if record is None:
        return not_open(request.job)
    record.lighthouse.is_forgotten = True
    context.changed(record.lighthouse)
    return record.lighthouse


def answer(issued: pb.IssuedQuorum) -> torchft.LighthouseQuorumResponse:
    """The response that every member receives."""
    response = torchft.LighthouseQuorumResponse()
    response.quorum.quorum_id = issued.quorum_id
    response.quorum.participants.extend(entry.member for entry in issued.seats)
    response.quorum.created.FromMilliseconds(issued.created_ms)
    return response


def not_open(job: str) -> pb.Refusal:
    return results.not_found(
        f"there is no lighthouse {job!r}",
        "start a proxy with this --job, or see `paceline coordinator lighthouse status`",
    )


def _why_not_open(context: ApplyContext, request: pb.OpenLighthouse) -> pb.Refusal | None:
    if not _NAME.fullmatch(request.job):
        return results.invalid(
            f"{request.job!r} is not a valid job name",
            "use 1 to 63 lower-case letters, digits or . _ -, a letter or digit first",
        )
    if request.min_replicas > MAX_REPLICAS:
        return results.invalid(
            f"job {request.job!r} needs {request.min_replicas} replicas",
            f"set min_replicas to {MAX_REPLICAS} at most",
        )
    if max(request.join_timeout_ms, request.heartbeat_timeout_ms) > MAX_TIMEOUT_MS:
        return results.invalid(f"job {request.job!r} waits for more than a day", "set shorter timeouts")
    if len(context.state.lighthouses) >= MAX_JOBS:
        return results.not_now(
            f"{MAX_JOBS} lighthouses are open",
            "remove finished ones with `paceline coordinator lighthouse forget`",
        )
    return None


def _why_not_same(request: pb.OpenLighthouse, existing: pb.Lighthouse) -> pb.Refusal | None:
    """All proxies of a job must agree on its settings: a differing one is a mistake."""
    for name, given, current in (
        ("min_replicas", request.min_replicas, existing.min_replicas),
        ("join_timeout_ms", request.join_timeout_ms, existing.join_timeout_ms),
        ("heartbeat_timeout_ms", request.heartbeat_timeout_ms, existing.heartbeat_timeout_ms),
    ):
        if given and given != current:
            return results.exists(
                f"job {request.job!r} has {name} {current}, not {given}",
                "leave it out, choose another job, or end this one: `paceline coordinator lighthouse forget`",
            )
    return None


def _why_not_issue(record: LighthouseRecord, request: pb.IssueQuorum) -> pb.Refusal | None:
    newest = 0 if record.issued is None else record.issued.round
    if request.previous != newest:
        return results.fenced(
            f"round {request.previous} is not the newest of job {request.job!r}: {newest} is",
            "decide again on the current state",
        )
    names = [entry.member.replica_id for entry in request.seats]
    if not all(names) or sorted(set(names)) != names:
        return results.invalid(
            f"the {len(names)} members of a quorum of job {request.job!r} are not named once each, in order",
            "sort them by replica_id",
        )
    if not record.lighthouse.min_replicas <= len(names) <= MAX_REPLICAS:
        return results.not_now(
            f"{len(names)} replicas are not a quorum of job {request.job!r}",
            f"a quorum has {record.lighthouse.min_replicas} to {MAX_REPLICAS}",
        )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    min_replicas: int
    join_timeout_s: float  # wait since the first request for live replicas without one
    heartbeat_timeout_s: float  # silence until a replica counts as dead


@dataclass(frozen=True, slots=True)
class QuorumRequest:
    member: torchft.QuorumMember
    since_s: float


@dataclass(frozen=True, slots=True)
class Issue:
    replicas: tuple[str, ...]  # sorted by name: all managers derive their ranks from this order
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str
    until_s: float | None  # when a heartbeat timeout may change the decision; None: only a request can


def next_quorum(
    rule: Rule,
    last: frozenset[str],
    asking: Mapping[str, QuorumRequest],
    heard_s: Mapping[str, float],
    now_s: float,
) -> Issue | Wait:
    """`last`: members of the last quorum, empty before the first. `heard_s`: newest heartbeat of each."""
    living = {name for name, at_s in heard_s.items() if now_s - at_s < rule.heartbeat_timeout_s}
    present = {name: request for name, request in asking.items() if name in living}
    is_closed = bool(last) and any(request.member.shrink_only for request in present.values())
    chosen = tuple(sorted(name for name in present if not is_closed or name in last))
    silence_s = min((heard_s[name] + rule.heartbeat_timeout_s for name in living), default=None)
    if len(chosen) < rule.min_replicas:
        return Wait(f"{len(chosen)} eligible replicas, but {rule.min_replicas} are needed", silence_s)
    if last and last <= present.keys():
        return Issue(chosen, "all members of the last quorum have joined")
    if 2 * len(present) <= len(living):
        return Wait(
            f"{len(present)} of {len(living)} live replicas have joined, which is not a majority", silence_s
        )
    missing = len(living) - len(present)
    until_s = min(request.since_s for request in present.values()) + rule.join_timeout_s
    if missing and now_s < until_s:
        due_s = until_s if silence_s is None else min(until_s, silence_s)
        return Wait(f"{missing} live replicas have not joined yet", due_s)
    return Issue(
        chosen, "all live replicas have joined" if not missing else f"{missing} did not join in time"
    )
