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


def form(context: ApplyContext, request: pb.FormGeneration) -> pb.Generation | pb.Refusal:
    record = results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not_form(record, request) or _why_not_members(record, request)
    if refusal is not None:
        return refusal
    # A run name is reused only after its ended run was dropped; numbering continues, so prefixes stay unique.
    number = (record.run.generation or context.state.forgotten_generation) + 1
    end_newest(context, record, f"generation {number} follows")
    generation = pb.Generation(
        run=request.run,
        number=number,
        workers=request.workers,
        store_prefix=f"{request.run}/{number}",
        step=request.step,
        data_plan=request.data_plan,
        reason=request.reason,
        formed_ms=context.now_ms,
    )
    record.generations[number] = generation
    keep_newest(record.generations, MAX_GENERATIONS)
    _activate_members(context, record, set(request.workers))
    context.changed(generation)
    record.run.generation = number
    record.run.phase = pb.RUN_RUNNING
    context.changed(record.run)
    return generation


def revoke(context: ApplyContext, request: pb.RevokeGeneration) -> pb.Generation | pb.Refusal:
    record = results.current_run(context.state, request.run, request.generation)
    if isinstance(record, pb.Refusal):
        return record
    end_newest(context, record, request.reason or "no reason was given")
    return record.generations[request.generation]


def end_newest(context: ApplyContext, record: RunRecord, reason: str) -> None:
    """Revoke the newest generation, unless it is revoked; abandon its checkpoints, return its leases."""
    newest = record.newest
    if newest is None or newest.is_revoked:
        return
    newest.is_revoked = True
    newest.revoked_because = reason
    newest.revoked_ms = context.now_ms
    context.changed(newest)
    samples.return_all(context, record)
    checkpoints.abandon_open(context, record)


def _why_not_form(record: RunRecord, request: pb.FormGeneration) -> pb.Refusal | None:
    run = record.run
    if request.previous != run.generation:
        return results.fenced(
            f"generation {request.previous} is not the newest of run {request.run!r}: {run.generation} is",
            "read the run again, and decide on its current state",
        )
    if request.step < run.committed_step:
        return results.not_now(
            f"step {request.step} is before step {run.committed_step}, which run {request.run!r} has "
            "committed",
            f"start at step {run.committed_step} or later",
        )
    if len(request.workers) < run.min_workers:
        return results.not_now(
            f"{len(request.workers)} workers were named, but run {request.run!r} needs {run.min_workers}",
            "wait for more workers to join",
        )
    if run.max_workers and len(request.workers) > run.max_workers:
        return results.invalid(
            f"{len(request.workers)} workers were named, but run {request.run!r} allows {run.max_workers} "
            "at most",
            "name fewer",
        )
    return None


def _why_not_members(record: RunRecord, request: pb.FormGeneration) -> pb.Refusal | None:
    seen = set()
    for name in request.workers:
        worker = record.workers.get(name)
        if worker is None:
            return results.not_found(
                f"worker {name!r} of run {request.run!r} is not alive", "name living workers only"
            )
        if name in seen:
            return results.invalid(f"worker {name!r} was named twice", "name every worker once")
        if worker.role not in _MEMBER_ROLES:
            return results.invalid(
                f"worker {name!r} has the role {worker.role!r}", "name those of role worker or spare"
            )
        seen.add(name)
    return None


def _activate_members(context: ApplyContext, record: RunRecord, members: set[str]) -> None:
    for worker in record.workers.values():
        phase = pb.WORKER_ACTIVE if worker.worker in members else pb.WORKER_JOINED
        if worker.phase != phase:
            worker.phase = phase
            context.changed(worker)


FIRST_WAIT_MS = 5_000  # since the last join, for missing workers
JOIN_WAIT_MS = 100  # wait for others that join at the same time


@dataclass(frozen=True, slots=True)
class Later:
    """Call again after `in_ms`."""

    in_ms: int


def next_generation(record: RunRecord, waited_ms: int) -> pb.FormGeneration | Later | None:
    """The generation to form now, if any. `waited_ms`: time since the leader read `last_joined`."""
    run = record.run
    newest = record.newest
    members = _next_members(record)
    if not run.want_workers or record.has_ended or len(members) < run.min_workers:
        return None
    if newest is None:
        reason = f"the first {len(members)} workers have joined"
        if len(members) < run.want_workers and waited_ms < FIRST_WAIT_MS:
            return Later(FIRST_WAIT_MS - waited_ms)
    elif newest.is_revoked:
        reason = f"generation {newest.number} was revoked: {newest.revoked_because}"
    else:
        joined = [name for name in members if name not in newest.workers]
        if not joined:
            return None
        reason = f"{', '.join(joined)} joined"
        if waited_ms < JOIN_WAIT_MS:
            return Later(JOIN_WAIT_MS - waited_ms)
    return pb.FormGeneration(
        run=run.run, previous=run.generation, workers=members, step=run.committed_step, reason=reason
    )


def _next_members(record: RunRecord) -> list[str]:
    """Remaining members keep their order, so that few ranks change; joining ones follow."""
    living = {name: worker for name, worker in record.workers.items() if worker.role == "worker"}
    previous = list(record.newest.workers) if record.newest is not None else []
    staying = [name for name in previous if name in living]
    joining = sorted(
        (name for name in living if name not in previous), key=lambda name: living[name].incarnation
    )
    limit = record.run.max_workers or len(living)
    return (staying + joining)[:limit]


def last_joined(record: RunRecord) -> int:
    """The newest incarnation among the living; 0: there are none."""
    return max((worker.incarnation for worker in record.workers.values()), default=0)
