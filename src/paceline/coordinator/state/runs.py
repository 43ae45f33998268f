"""Runs, their workers, and the placement of parameter servers.

A run is created, commits steps and ends; an ended run never changes.

An incarnation is the log index at which a worker joined, so a worker that comes back is a new
one, and commands about the previous incarnation do not affect it.

The epoch of a shard's placement grows with every change. Each push carries it, so that a former
primary that has not been notified yet is refused.
"""

import re

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import generations, results
from paceline.coordinator.state.model import ENDED, RunRecord, keep_newest
from paceline.coordinator.state.results import ApplyContext

# The epoch of a place grows with every change. A push carries it, so that a
# former primary that does not know yet is refused.

MAX_SERVER_SHARDS = 4_096


def place_server(turn: ApplyContext, said: pb.PlaceServer) -> pb.ServerPlace | pb.Refusal:
    record = results.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not_place(record, said)
    if refusal is not None:
        return refusal
    known = record.servers.get(said.shard) or pb.ServerPlace(run=said.run, shard=said.shard)
    return _put_server(turn, record, known, said.primary, said.backup)


def promote_backup(turn: ApplyContext, said: pb.PromoteBackup) -> pb.ServerPlace | pb.Refusal:
    record = results.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    found = record.servers.get(said.shard)
    if found is None:
        return results.not_found(f"shard {said.shard} of run {said.run!r} is not placed", "place it first")
    if said.epoch != found.epoch:
        return _stale_epoch(said.run, said.shard, said.epoch, found.epoch)
    if not found.backup:
        return results.not_now(
            f"shard {said.shard} of run {said.run!r} has no backup", "place it anew, with a backup"
        )
    return _put_server(turn, record, found, found.backup, "")


def release_worker(turn: ApplyContext, record: RunRecord, worker: str) -> None:
    """The worker is gone: where it was primary its backup takes over at once."""
    for found in list(record.servers.values()):
        if found.primary == worker:
            _put_server(turn, record, found, found.backup, "")
        elif found.backup == worker:
            _put_server(turn, record, found, found.primary, "")


def vacate_servers(turn: ApplyContext, record: RunRecord) -> None:
    """Everybody is gone."""
    for found in list(record.servers.values()):
        if found.primary or found.backup:
            _put_server(turn, record, found, "", "")


def _put_server(
    turn: ApplyContext, record: RunRecord, known: pb.ServerPlace, primary: str, backup: str
) -> pb.ServerPlace:
    """A new record each time: a message that is changed for ever keeps the memory of what it held."""
    found = pb.ServerPlace(
        run=known.run, shard=known.shard, primary=primary, backup=backup, epoch=known.epoch + 1
    )
    record.servers[known.shard] = found
    turn.changed(found)
    return found


def _why_not_place(record: RunRecord, said: pb.PlaceServer) -> pb.Refusal | None:
    if said.shard >= MAX_SERVER_SHARDS:
        return results.invalid(
            f"shard {said.shard} is beyond the last one", f"use shards 0 to {MAX_SERVER_SHARDS - 1}"
        )
    known = record.servers.get(said.shard)
    epoch = 0 if known is None else known.epoch
    if said.epoch != epoch:
        return _stale_epoch(said.run, said.shard, said.epoch, epoch)
    if said.primary == said.backup:
        return results.invalid(
            f"{said.primary!r} was named as primary and as backup",
            "name two workers, or leave the backup empty",
        )
    for name in (said.primary, said.backup) if said.backup else (said.primary,):
        if name not in record.workers:
            return results.not_found(
                f"worker {name!r} of run {said.run!r} is not alive", "name living workers only"
            )
    return None


def _stale_epoch(run: str, shard: int, said: int, known: int) -> pb.Refusal:
    return results.fenced(
        f"shard {shard} of run {run!r} is in epoch {known}, not {said}",
        "read its place again, and decide anew",
    )


# An incarnation is the log index of its joining, so a worker that comes back is
# another one, and what is said about the one before does not touch it.

WORKER_ROLES = ("worker", "server", "spare")
MAX_LIVE_WORKERS = 10_000  # in a run
MAX_ENDED_WORKERS = 1_000  # in a run
_WORKER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


def join_run(turn: ApplyContext, said: pb.JoinRun) -> pb.Worker | pb.Refusal:
    record = results.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    role = said.role or "worker"
    refusal = _why_not_join(record, said.worker, role)
    if refusal is not None:
        return refusal
    earlier = record.workers.get(said.worker)
    if earlier is not None:
        end_worker(turn, record, earlier, pb.WORKER_LOST, "replaced by a new incarnation")
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


def leave_run(turn: ApplyContext, said: pb.LeaveRun) -> pb.Worker | pb.Refusal:
    return _end_named_worker(turn, said, pb.WORKER_LEFT)


def lose_worker(turn: ApplyContext, said: pb.LoseWorker) -> pb.Worker | pb.Refusal:
    return _end_named_worker(turn, said, pb.WORKER_LOST)


def end_worker(
    turn: ApplyContext, record: RunRecord, worker: pb.Worker, phase: pb.WorkerPhase, reason: str
) -> None:
    was_active = worker.phase == pb.WORKER_ACTIVE
    retire_worker(turn, record, worker, phase, reason)
    if was_active:
        verb = "left" if phase == pb.WORKER_LEFT else "was lost"
        generations.end_newest(
            turn, record, f"worker {worker.worker} {verb}" + (f": {reason}" if reason else "")
        )
    release_worker(turn, record, worker.worker)


def retire_worker(
    turn: ApplyContext, record: RunRecord, worker: pb.Worker, phase: pb.WorkerPhase, reason: str
) -> None:
    """Without what follows for others."""
    worker.phase = phase
    worker.reason = reason
    worker.ended_ms = turn.now_ms
    record.ended_workers[worker.incarnation] = record.workers.pop(worker.worker)
    keep_newest(record.ended_workers, MAX_ENDED_WORKERS)
    turn.changed(worker)


def _end_named_worker(
    turn: ApplyContext, said: pb.LeaveRun | pb.LoseWorker, phase: pb.WorkerPhase
) -> pb.Worker | pb.Refusal:
    record = results.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    worker = record.workers.get(said.worker)
    if worker is not None and worker.incarnation == said.incarnation:
        end_worker(turn, record, worker, phase, said.reason)
        return worker
    if worker is None and not any(gone.worker == said.worker for gone in record.ended_workers.values()):
        return results.not_found(f"run {said.run!r} has no worker {said.worker!r}", "list its workers")
    living = "it is not alive" if worker is None else f"{worker.incarnation} is alive"
    return results.fenced(
        f"incarnation {said.incarnation} of worker {said.worker!r} in run {said.run!r} is over: {living}",
        "nothing is left to end; join again to be in the run",
    )


def _why_not_join(record: RunRecord, name: str, role: str) -> pb.Refusal | None:
    if not _WORKER_NAME.fullmatch(name):
        return results.invalid(
            f"{name!r} is no name for a worker",
            "use 1 to 128 letters, digits or . _ : @ -, a letter or digit first",
        )
    if role not in WORKER_ROLES:
        return results.invalid(f"there is no role {role!r}", f"use one of {', '.join(WORKER_ROLES)}")
    others = len(record.workers) - (name in record.workers)
    if others >= MAX_LIVE_WORKERS:
        return results.not_now(
            f"run {record.run.run!r} has {MAX_LIVE_WORKERS} living workers", "wait until some are gone"
        )
    most = record.run.max_workers
    if role == "worker" and 0 < most <= others and _num_workers_but(record, name) >= most:
        return results.not_now(
            f"run {record.run.run!r} has {most} workers, and takes no more",
            "join as a spare, or wait until one is gone",
        )
    return None


def _num_workers_but(record: RunRecord, name: str) -> int:
    """Of that role; spares and servers wait beside them."""
    return sum(worker.role == "worker" and worker.worker != name for worker in record.workers.values())


MAX_OPEN_RUNS = 10_000
MAX_ENDED_RUNS = 1_000
_RUN_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,62}")


def create_run(turn: ApplyContext, said: pb.CreateRun) -> pb.Run | pb.Refusal:
    refusal = _why_not_create(turn, said)
    if refusal is not None:
        return refusal
    run = pb.Run(
        run=said.run,
        phase=pb.RUN_WAITING,
        plan=said.plan,
        min_workers=said.min_workers,
        max_workers=said.max_workers,
        samples=said.samples,
        launcher=said.launcher,
        external_id=said.external_id,
        want_workers=said.want_workers,
        created_ms=turn.now_ms,
    )
    turn.state.runs[said.run] = RunRecord(run)
    turn.changed(run)
    return run


def end_run(turn: ApplyContext, said: pb.EndRun) -> pb.Run | pb.Refusal:
    record = results.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    if said.phase not in ENDED:
        return results.invalid(
            f"run {said.run!r} cannot end in phase {said.phase}", "end it as finished, failed or stopped"
        )
    generations.end_newest(turn, record, "the run ended")
    for worker in list(record.workers.values()):
        retire_worker(turn, record, worker, pb.WORKER_LEFT, "the run ended")
    vacate_servers(turn, record)
    record.run.phase = said.phase
    record.run.reason = said.reason
    record.run.ended_ms = turn.now_ms
    turn.changed(record.run)
    turn.state.ended_runs[said.run] = turn.state.runs.pop(said.run)
    for forgotten in keep_newest(turn.state.ended_runs, MAX_ENDED_RUNS):
        _forget_run(turn, forgotten.run)
    return record.run


def commit_step(turn: ApplyContext, said: pb.CommitStep) -> pb.Run | pb.Refusal:
    record = results.current_run(turn.state, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    run = record.run
    lowest = max(run.committed_step, record.generations[said.generation].step)
    if said.step < lowest:
        return results.not_now(
            f"step {said.step} of run {said.run!r} is before step {lowest}",
            "steps are committed forward only",
        )
    if said.step > run.committed_step:  # otherwise another worker said so before
        run.committed_step = said.step
        turn.changed(run)
    return run


def _why_not_create(turn: ApplyContext, said: pb.CreateRun) -> pb.Refusal | None:
    if not _RUN_NAME.fullmatch(said.run):
        return results.invalid(
            f"{said.run!r} is no name for a run",
            "use 1 to 63 small letters, digits or . _ -, a letter or digit first",
        )
    if said.run in turn.state.runs or said.run in turn.state.ended_runs:
        return results.exists(
            f"there is already a run {said.run!r}", "choose another name, ended runs keep theirs"
        )
    if said.min_workers < 1:
        return results.invalid(
            f"run {said.run!r} needs {said.min_workers} workers", "set min_workers to 1 or more"
        )
    if said.max_workers and said.max_workers < said.min_workers:
        return results.invalid(
            f"run {said.run!r} takes {said.max_workers} workers at most and needs {said.min_workers}",
            "set max_workers to 0 (no limit) or to min_workers or more",
        )
    if len(turn.state.runs) >= MAX_OPEN_RUNS:
        return results.not_now(f"{MAX_OPEN_RUNS} runs have not ended", "end those that are over")
    return None


def _forget_run(turn: ApplyContext, run: pb.Run) -> None:
    state = turn.state
    state.forgotten_generation = max(state.forgotten_generation, run.generation)
    for number in [number for number, action in state.actions.items() if action.run == run.run]:
        del state.actions[number]
