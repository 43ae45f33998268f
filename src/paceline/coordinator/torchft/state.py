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


def open_lighthouse(turn: ApplyContext, said: pb.OpenLighthouse) -> pb.Lighthouse | pb.Refusal:
    known = turn.state.lighthouses.get(said.job)
    refusal = _why_not_open(turn, said) if known is None else _why_not_as_it_is(said, known.lighthouse)
    if refusal is not None:
        return refusal
    if known is not None:
        return known.lighthouse
    made = pb.Lighthouse(
        job=said.job,
        min_replicas=said.min_replicas or DEFAULT_MIN_REPLICAS,
        join_timeout_ms=said.join_timeout_ms or DEFAULT_JOIN_TIMEOUT_MS,
        heartbeat_timeout_ms=said.heartbeat_timeout_ms or DEFAULT_HEARTBEAT_TIMEOUT_MS,
        opened=turn.index,
    )
    turn.state.lighthouses[said.job] = LighthouseRecord(made)
    turn.changed(made)
    return made


def issue(turn: ApplyContext, said: pb.IssueQuorum) -> pb.IssuedQuorum | pb.Refusal:
    record = turn.state.lighthouses.get(said.job)
    if record is None:
        return not_open(said.job)
    refusal = _why_not_issue(record, said)
    if refusal is not None:
        return refusal
    names = [seat.member.replica_id for seat in said.seats]
    has_failed = any(seat.member.commit_failures > 0 for seat in said.seats)
    if has_failed or names != list(record.lighthouse.replicas):
        record.lighthouse = _with_members(record.lighthouse, names, turn)
        turn.changed(record.lighthouse)  # steps are no news: they would drown everything else
    record.issued = pb.IssuedQuorum(
        round=turn.index, quorum_id=record.lighthouse.quorum_id, seats=said.seats, created_ms=turn.now_ms
    )
    return record.issued


def _with_members(known: pb.Lighthouse, names: Sequence[str], turn: ApplyContext) -> pb.Lighthouse:
    """A new message: one that is changed for ever keeps the memory of all it ever held."""
    return pb.Lighthouse(
        job=known.job,
        min_replicas=known.min_replicas,
        join_timeout_ms=known.join_timeout_ms,
        heartbeat_timeout_ms=known.heartbeat_timeout_ms,
        quorum_id=turn.index,
        replicas=names,
        since_ms=turn.now_ms,
        opened=known.opened,
    )


def forget(turn: ApplyContext, said: pb.ForgetLighthouse) -> pb.Lighthouse | pb.Refusal:
    record = turn.state.lighthouses.pop(said.job, None)
    if record is None:
        return not_open(said.job)
    record.lighthouse.is_forgotten = True
    turn.changed(record.lighthouse)
    return record.lighthouse


def answer(issued: pb.IssuedQuorum) -> torchft.LighthouseQuorumResponse:
    """What every member of it hears."""
    found = torchft.LighthouseQuorumResponse()
    found.quorum.quorum_id = issued.quorum_id
    found.quorum.participants.extend(seat.member for seat in issued.seats)
    found.quorum.created.FromMilliseconds(issued.created_ms)
    return found


def not_open(job: str) -> pb.Refusal:
    return results.not_found(
        f"there is no lighthouse {job!r}",
        "start a proxy with this --job, or see `paceline lighthouse status`",
    )


def _why_not_open(turn: ApplyContext, said: pb.OpenLighthouse) -> pb.Refusal | None:
    if not _NAME.fullmatch(said.job):
        return results.invalid(
            f"{said.job!r} is no name for a job",
            "use 1 to 63 small letters, digits or . _ -, a letter or digit first",
        )
    if said.min_replicas > MAX_REPLICAS:
        return results.invalid(
            f"job {said.job!r} needs {said.min_replicas} replicas",
            f"set min_replicas to {MAX_REPLICAS} at most",
        )
    if max(said.join_timeout_ms, said.heartbeat_timeout_ms) > MAX_TIMEOUT_MS:
        return results.invalid(f"job {said.job!r} waits for more than a day", "set shorter timeouts")
    if len(turn.state.lighthouses) >= MAX_JOBS:
        return results.not_now(
            f"{MAX_JOBS} lighthouses are open", "end those that are over with `paceline lighthouse forget`"
        )
    return None


def _why_not_as_it_is(said: pb.OpenLighthouse, known: pb.Lighthouse) -> pb.Refusal | None:
    """All proxies of a job must mean the same: what one of them says otherwise is a mistake."""
    for name, wanted, has in (
        ("min_replicas", said.min_replicas, known.min_replicas),
        ("join_timeout_ms", said.join_timeout_ms, known.join_timeout_ms),
        ("heartbeat_timeout_ms", said.heartbeat_timeout_ms, known.heartbeat_timeout_ms),
    ):
        if wanted and wanted != has:
            return results.exists(
                f"job {said.job!r} has {name} {has}, not {wanted}",
                "leave it out, choose another job, or end this one with `paceline lighthouse forget`",
            )
    return None


def _why_not_issue(record: LighthouseRecord, said: pb.IssueQuorum) -> pb.Refusal | None:
    newest = 0 if record.issued is None else record.issued.round
    if said.previous != newest:
        return results.fenced(
            f"round {said.previous} is not the newest of job {said.job!r}: {newest} is",
            "decide again, on what the state says now",
        )
    names = [seat.member.replica_id for seat in said.seats]
    if not all(names) or sorted(set(names)) != names:
        return results.invalid(
            f"the {len(names)} members of a quorum of job {said.job!r} are not named once each, in order",
            "sort them by replica_id",
        )
    if not record.lighthouse.min_replicas <= len(names) <= MAX_REPLICAS:
        return results.not_now(
            f"{len(names)} replicas are no quorum of job {said.job!r}",
            f"it takes {record.lighthouse.min_replicas} to {MAX_REPLICAS}",
        )
    return None


# The rule is torchft's, or stricter. If all members of the last quorum ask again,
# they and whoever else asks are the next one, at once. Otherwise at least
# `min_replicas` must ask, and more than half of those who give signs of life; and
# those who live but do not ask are waited for, up to a limit. Nobody is in a
# quorum who has been silent too long, or did not ask.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    min_replicas: int
    join_timeout_s: float  # since the first one asked, for those who live but do not ask
    heartbeat_timeout_s: float  # of silence until a replica counts as dead


@dataclass(frozen=True, slots=True)
class QuorumRequest:
    member: torchft.QuorumMember
    since_s: float


@dataclass(frozen=True, slots=True)
class Issue:
    replicas: tuple[str, ...]  # by name: all managers derive their ranks from this order
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str
    until_s: float | None  # when silence alone may change the answer; None: only a request can


def next_quorum(
    rule: Rule,
    last: frozenset[str],
    asking: Mapping[str, QuorumRequest],
    heard_s: Mapping[str, float],
    now_s: float,
) -> Issue | Wait:
    """`last` is who was in the last quorum, empty before the first; `heard_s` when each was heard last."""
    living = {name for name, at_s in heard_s.items() if now_s - at_s < rule.heartbeat_timeout_s}
    present = {name: found for name, found in asking.items() if name in living}
    is_closed = bool(last) and any(found.member.shrink_only for found in present.values())
    chosen = tuple(sorted(name for name in present if not is_closed or name in last))
    silence_s = min((heard_s[name] + rule.heartbeat_timeout_s for name in living), default=None)
    if len(chosen) < rule.min_replicas:
        return Wait(f"{len(chosen)} replicas may take part, and {rule.min_replicas} are needed", silence_s)
    if last and last <= present.keys():
        return Issue(chosen, "all members of the last quorum are here")
    if 2 * len(present) <= len(living):
        return Wait(f"{len(present)} of {len(living)} living replicas ask, which is not the most", silence_s)
    missing = len(living) - len(present)
    until_s = min(found.since_s for found in present.values()) + rule.join_timeout_s
    if missing and now_s < until_s:
        due_s = until_s if silence_s is None else min(until_s, silence_s)
        return Wait(f"{missing} replicas live but do not ask yet", due_s)
    return Issue(chosen, "all who live are here" if not missing else f"{missing} were waited for in vain")
