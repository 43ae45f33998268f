"""Who works together from which step on? One generation at a time; whoever is of another one changes nothing.

The number only grows and is in everything that a worker says (fencing). A
generation ends by being revoked: by a request, by the loss of a member, by the
next one, or with its run.
"""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import checkpoints, find, refuse, samples
from paceline.coordinator.state.model import RunRecord, keep_newest
from paceline.coordinator.state.turn import Turn

MOST_KEPT = 16
_MEMBER_ROLES = ("worker", "spare")


def form(turn: Turn, said: pb.FormGeneration) -> pb.Generation | pb.Refusal:
    record = find.open_run(turn.state, said.run)
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
    keep_newest(record.generations, MOST_KEPT)
    _call_up(turn, record, set(said.workers))
    turn.changed(found)
    record.run.generation = number
    record.run.phase = pb.RUN_RUNNING
    turn.changed(record.run)
    return found


def revoke(turn: Turn, said: pb.RevokeGeneration) -> pb.Generation | pb.Refusal:
    record = find.current(turn.state, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    end_newest(turn, record, said.reason or "no reason was given")
    return record.generations[said.generation]


def end_newest(turn: Turn, record: RunRecord, reason: str) -> None:
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
        return refuse.fenced(
            f"generation {said.previous} is not the newest of run {said.run!r}: {run.generation} is",
            "read the run again, and decide on what it says now",
        )
    if said.step < run.committed_step:
        return refuse.not_now(
            f"step {said.step} is before step {run.committed_step}, which run {said.run!r} has committed",
            f"begin at step {run.committed_step} or later",
        )
    if len(said.workers) < run.min_workers:
        return refuse.not_now(
            f"{len(said.workers)} workers were named, but run {said.run!r} needs {run.min_workers}",
            "wait for more workers to join",
        )
    if run.max_workers and len(said.workers) > run.max_workers:
        return refuse.invalid(
            f"{len(said.workers)} workers were named, but run {said.run!r} takes {run.max_workers} at most",
            "name fewer",
        )
    return None


def _why_not_members(record: RunRecord, said: pb.FormGeneration) -> pb.Refusal | None:
    seen = set()
    for name in said.workers:
        worker = record.workers.get(name)
        if worker is None:
            return refuse.not_found(
                f"worker {name!r} of run {said.run!r} is not alive", "name living workers only"
            )
        if name in seen:
            return refuse.invalid(f"worker {name!r} was named twice", "name every worker once")
        if worker.role not in _MEMBER_ROLES:
            return refuse.invalid(
                f"worker {name!r} has the role {worker.role!r}", "name those of role worker or spare"
            )
        seen.add(name)
    return None


def _call_up(turn: Turn, record: RunRecord, members: set[str]) -> None:
    for worker in record.workers.values():
        phase = pb.WORKER_ACTIVE if worker.worker in members else pb.WORKER_JOINED
        if worker.phase != phase:
            worker.phase = phase
            turn.changed(worker)
