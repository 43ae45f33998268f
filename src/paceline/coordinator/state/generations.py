"""Generations: which workers train together, starting at which step.

A run has one generation at a time. Its number only grows and is part of every worker's request
(fencing): a request of another generation changes nothing. A generation ends by being revoked:
by a request, by the loss of a member, by the next generation, or with its run.

`next_generation` decides when to form one. The first waits until `want_workers` have joined, or
none has joined for FIRST_WAIT_MS. After a loss the survivors continue at once. Later joiners
wait JOIN_WAIT_MS for others, since every new generation interrupts a step. The leader counts the
waiting by its own monotonic clock from when it saw the last join, so a new leader starts to wait
again; no calendar time is compared.
"""

from dataclasses import dataclass

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import checkpoints, results, samples
from paceline.coordinator.state.model import RunRecord, keep_newest
from paceline.coordinator.state.results import ApplyContext

MAX_GENERATIONS = 16
_MEMBER_ROLES = ("worker", "spare")


def form(turn: ApplyContext, said: pb.FormGeneration) -> pb.Generation | pb.Refusal:
    record = results.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not(record, said) or _why_not_members(record, said)
    if refusal is not None:
        return refusal
    # A name comes back only after its ended run was forgotten; counting on keeps prefixes and numbers unused.
    number = (record.run.generation or turn.state.forgotten_generation) + 1
    end_newest(turn, record, f"generation {number} follows")
    found = pb.Generation(
        run=said.run,
        number=number,
        workers=said.workers,
        store_prefix=f"{said.run}/{number}",
        step=said.step,
        data_plan=said.data_plan,
        reason=said.reason,
        formed_ms=turn.now_ms,
    )
    record.generations[number] = found
    keep_newest(record.generations, MAX_GENERATIONS)
    _call_up(turn, record, set(said.workers))
    turn.changed(found)
    record.run.generation = number
    record.run.phase = pb.RUN_RUNNING
    turn.changed(record.run)
    return found


def revoke(turn: ApplyContext, said: pb.RevokeGeneration) -> pb.Generation | pb.Refusal:
    record = results.current_run(turn.state, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    end_newest(turn, record, said.reason or "no reason was given")
    return record.generations[said.generation]


def end_newest(turn: ApplyContext, record: RunRecord, reason: str) -> None:
    """Revokes it, unless it is revoked; what it had begun is abandoned or given back."""
    newest = record.newest
    if newest is None or newest.is_revoked:
        return
    newest.is_revoked = True
    newest.revoked_because = reason
    newest.revoked_ms = turn.now_ms
    turn.changed(newest)
    samples.return_all(turn, record)
    checkpoints.abandon_open(turn, record)


def _why_not(record: RunRecord, said: pb.FormGeneration) -> pb.Refusal | None:
    run = record.run
    if said.previous != run.generation:
        return results.fenced(
            f"generation {said.previous} is not the newest of run {said.run!r}: {run.generation} is",
            "read the run again, and decide on what it says now",
        )
    if said.step < run.committed_step:
        return results.not_now(
            f"step {said.step} is before step {run.committed_step}, which run {said.run!r} has committed",
            f"begin at step {run.committed_step} or later",
        )
    if len(said.workers) < run.min_workers:
        return results.not_now(
            f"{len(said.workers)} workers were named, but run {said.run!r} needs {run.min_workers}",
            "wait for more workers to join",
        )
    if run.max_workers and len(said.workers) > run.max_workers:
        return results.invalid(
            f"{len(said.workers)} workers were named, but run {said.run!r} takes {run.max_workers} at most",
            "name fewer",
        )
    return None


def _why_not_members(record: RunRecord, said: pb.FormGeneration) -> pb.Refusal | None:
    seen = set()
    for name in said.workers:
        worker = record.workers.get(name)
        if worker is None:
            return results.not_found(
                f"worker {name!r} of run {said.run!r} is not alive", "name living workers only"
            )
        if name in seen:
            return results.invalid(f"worker {name!r} was named twice", "name every worker once")
        if worker.role not in _MEMBER_ROLES:
            return results.invalid(
                f"worker {name!r} has the role {worker.role!r}", "name those of role worker or spare"
            )
        seen.add(name)
    return None


def _call_up(turn: ApplyContext, record: RunRecord, members: set[str]) -> None:
    for worker in record.workers.values():
        phase = pb.WORKER_ACTIVE if worker.worker in members else pb.WORKER_JOINED
        if worker.phase != phase:
            worker.phase = phase
            turn.changed(worker)


# The first waits until as many workers as wanted are there, or none has come for
# a while. After a loss the survivors go on at once. Those who come later wait a
# moment for others who come too, since every new generation interrupts a step.
# Waiting is counted by the leader from when it saw the last join, by its own
# monotonic clock, so a new leader begins to wait again; no calendar time is compared.

FIRST_WAIT_MS = 5_000  # since the last one joined, for those who are still missing
JOIN_WAIT_MS = 100  # for others who come at the same time


@dataclass(frozen=True, slots=True)
class Later:
    """Ask again after so long."""

    in_ms: int


def next_generation(record: RunRecord, waited_ms: int) -> pb.FormGeneration | Later | None:
    """`waited_ms`: since the leader saw the newest worker of the run (`last_joined`)."""
    run, newest = record.run, record.newest
    members = _next_members(record)
    if not run.want_workers or record.has_ended or len(members) < run.min_workers:
        return None
    if newest is None:
        reason = f"the first {len(members)} workers are here"
        if len(members) < run.want_workers and waited_ms < FIRST_WAIT_MS:
            return Later(FIRST_WAIT_MS - waited_ms)
    elif newest.is_revoked:
        reason = f"generation {newest.number} was revoked: {newest.revoked_because}"
    else:
        new = [name for name in members if name not in newest.workers]
        if not new:
            return None
        reason = f"{', '.join(new)} joined"
        if waited_ms < JOIN_WAIT_MS:
            return Later(JOIN_WAIT_MS - waited_ms)
    return pb.FormGeneration(
        run=run.run, previous=run.generation, workers=members, step=run.committed_step, reason=reason
    )


def _next_members(record: RunRecord) -> list[str]:
    """Who stays keeps its order, so that ranks change little; who is new comes behind."""
    living = {name: worker for name, worker in record.workers.items() if worker.role == "worker"}
    before = list(record.newest.workers) if record.newest is not None else []
    staying = [name for name in before if name in living]
    coming = sorted(
        (name for name in living if name not in before), key=lambda name: living[name].incarnation
    )
    most = record.run.max_workers or len(living)
    return (staying + coming)[:most]


def last_joined(record: RunRecord) -> int:
    """The newest incarnation among the living; 0: there are none."""
    return max((worker.incarnation for worker in record.workers.values()), default=0)
