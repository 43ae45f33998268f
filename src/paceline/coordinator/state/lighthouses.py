"""Which quorums has a torchft job been given? Each is in the log before any member hears of it.

So a member whose answer was lost with a leader is given the same one by the
next: it is found by the nonce of the request. The quorum's number is the log's
index, and changes only when its members do or one of them could not commit.
"""

import re
from collections.abc import Sequence

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.state import refuse
from paceline.coordinator.state.model import LighthouseRecord
from paceline.coordinator.state.turn import Turn

USUAL_MIN_REPLICAS = 1
USUAL_JOIN_TIMEOUT_MS = 60_000  # this and the next are what torchft's own lighthouse does
USUAL_HEARTBEAT_TIMEOUT_MS = 5_000
MOST_JOBS = 100
MOST_REPLICAS = 10_000
LONGEST_MS = 86_400_000
_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,62}")


def open_lighthouse(turn: Turn, said: pb.OpenLighthouse) -> pb.Lighthouse | pb.Refusal:
    known = turn.state.lighthouses.get(said.job)
    refusal = _why_not_open(turn, said) if known is None else _why_not_as_it_is(said, known.lighthouse)
    if refusal is not None:
        return refusal
    if known is not None:
        return known.lighthouse
    made = pb.Lighthouse(
        job=said.job,
        min_replicas=said.min_replicas or USUAL_MIN_REPLICAS,
        join_timeout_ms=said.join_timeout_ms or USUAL_JOIN_TIMEOUT_MS,
        heartbeat_timeout_ms=said.heartbeat_timeout_ms or USUAL_HEARTBEAT_TIMEOUT_MS,
        opened=turn.index,
    )
    turn.state.lighthouses[said.job] = LighthouseRecord(made)
    turn.changed(made)
    return made


def issue(turn: Turn, said: pb.IssueQuorum) -> pb.IssuedQuorum | pb.Refusal:
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


def _with_members(known: pb.Lighthouse, names: Sequence[str], turn: Turn) -> pb.Lighthouse:
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


def forget(turn: Turn, said: pb.ForgetLighthouse) -> pb.Lighthouse | pb.Refusal:
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
    return refuse.not_found(
        f"there is no lighthouse {job!r}",
        "start a proxy with this --job, or see `paceline lighthouse status`",
    )


def _why_not_open(turn: Turn, said: pb.OpenLighthouse) -> pb.Refusal | None:
    if not _NAME.fullmatch(said.job):
        return refuse.invalid(
            f"{said.job!r} is no name for a job",
            "use 1 to 63 small letters, digits or . _ -, a letter or digit first",
        )
    if said.min_replicas > MOST_REPLICAS:
        return refuse.invalid(
            f"job {said.job!r} needs {said.min_replicas} replicas",
            f"set min_replicas to {MOST_REPLICAS} at most",
        )
    if max(said.join_timeout_ms, said.heartbeat_timeout_ms) > LONGEST_MS:
        return refuse.invalid(f"job {said.job!r} waits for more than a day", "set shorter timeouts")
    if len(turn.state.lighthouses) >= MOST_JOBS:
        return refuse.not_now(
            f"{MOST_JOBS} lighthouses are open", "end those that are over with `paceline lighthouse forget`"
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
            return refuse.exists(
                f"job {said.job!r} has {name} {has}, not {wanted}",
                "leave it out, choose another job, or end this one with `paceline lighthouse forget`",
            )
    return None


def _why_not_issue(record: LighthouseRecord, said: pb.IssueQuorum) -> pb.Refusal | None:
    newest = 0 if record.issued is None else record.issued.round
    if said.previous != newest:
        return refuse.fenced(
            f"round {said.previous} is not the newest of job {said.job!r}: {newest} is",
            "decide again, on what the state says now",
        )
    names = [seat.member.replica_id for seat in said.seats]
    if not all(names) or sorted(set(names)) != names:
        return refuse.invalid(
            f"the {len(names)} members of a quorum of job {said.job!r} are not named once each, in order",
            "sort them by replica_id",
        )
    if not record.lighthouse.min_replicas <= len(names) <= MOST_REPLICAS:
        return refuse.not_now(
            f"{len(names)} replicas are no quorum of job {said.job!r}",
            f"it takes {record.lighthouse.min_replicas} to {MOST_REPLICAS}",
        )
    return None
