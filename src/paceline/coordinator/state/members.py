"""Who is in a run? Joining makes an incarnation; ending it, in any way, has all its consequences at once.

An incarnation is the log index of its joining, so a worker that comes back is
another one, and what is said about the one before does not touch it.
"""

import re

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import find, generations, refuse, servers
from paceline.coordinator.state.model import RunRecord, keep_newest
from paceline.coordinator.state.turn import Turn

ROLES = ("worker", "server", "spare")
MOST_LIVING = 10_000  # in a run
MOST_ENDED = 1_000  # in a run
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


def join(turn: Turn, said: pb.JoinRun) -> pb.Worker | pb.Refusal:
    record = find.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    role = said.role or "worker"
    refusal = _why_not(record, said.worker, role)
    if refusal is not None:
        return refusal
    earlier = record.workers.get(said.worker)
    if earlier is not None:
        end(turn, record, earlier, pb.WORKER_LOST, "replaced by a new incarnation")
    worker = pb.Worker(
        run=said.run,
        worker=said.worker,
        incarnation=turn.index,
        phase=pb.WORKER_JOINED,
        address=said.address,
        role=role,
        facts=said.facts,
        joined_ms=turn.now_ms,
    )
    record.workers[said.worker] = worker
    turn.changed(worker)
    return worker


def leave(turn: Turn, said: pb.LeaveRun) -> pb.Worker | pb.Refusal:
    return _end_one(turn, said, pb.WORKER_LEFT)


def lose(turn: Turn, said: pb.LoseWorker) -> pb.Worker | pb.Refusal:
    return _end_one(turn, said, pb.WORKER_LOST)


def end(turn: Turn, record: RunRecord, worker: pb.Worker, phase: pb.WorkerPhase, reason: str) -> None:
    was_active = worker.phase == pb.WORKER_ACTIVE
    retire(turn, record, worker, phase, reason)
    if was_active:
        verb = "left" if phase == pb.WORKER_LEFT else "was lost"
        generations.end_newest(
            turn, record, f"worker {worker.worker} {verb}" + (f": {reason}" if reason else "")
        )
    servers.without(turn, record, worker.worker)


def retire(turn: Turn, record: RunRecord, worker: pb.Worker, phase: pb.WorkerPhase, reason: str) -> None:
    """Without what follows for others."""
    worker.phase = phase
    worker.reason = reason
    worker.ended_ms = turn.now_ms
    record.ended_workers[worker.incarnation] = record.workers.pop(worker.worker)
    keep_newest(record.ended_workers, MOST_ENDED)
    turn.changed(worker)


def _end_one(turn: Turn, said: pb.LeaveRun | pb.LoseWorker, phase: pb.WorkerPhase) -> pb.Worker | pb.Refusal:
    record = find.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    worker = record.workers.get(said.worker)
    if worker is not None and worker.incarnation == said.incarnation:
        end(turn, record, worker, phase, said.reason)
        return worker
    if worker is None and not any(gone.worker == said.worker for gone in record.ended_workers.values()):
        return refuse.not_found(f"run {said.run!r} has no worker {said.worker!r}", "list its workers")
    living = "it is not alive" if worker is None else f"{worker.incarnation} is alive"
    return refuse.fenced(
        f"incarnation {said.incarnation} of worker {said.worker!r} in run {said.run!r} is over: {living}",
        "nothing is left to end; join again to be in the run",
    )


def _why_not(record: RunRecord, name: str, role: str) -> pb.Refusal | None:
    if not _NAME.fullmatch(name):
        return refuse.invalid(
            f"{name!r} is no name for a worker",
            "use 1 to 128 letters, digits or . _ : @ -, a letter or digit first",
        )
    if role not in ROLES:
        return refuse.invalid(f"there is no role {role!r}", f"use one of {', '.join(ROLES)}")
    others = len(record.workers) - (name in record.workers)
    if others >= MOST_LIVING:
        return refuse.not_now(
            f"run {record.run.run!r} has {MOST_LIVING} living workers", "wait until some are gone"
        )
    most = record.run.max_workers
    if role == "worker" and 0 < most <= others and _num_workers_but(record, name) >= most:
        return refuse.not_now(
            f"run {record.run.run!r} has {most} workers, and takes no more",
            "join as a spare, or wait until one is gone",
        )
    return None


def _num_workers_but(record: RunRecord, name: str) -> int:
    """Of that role; spares and servers wait beside them."""
    return sum(worker.role == "worker" and worker.worker != name for worker in record.workers.values())
