"""Runs, their workers, and the placement of parameter servers.

A run is created, commits steps and ends; an ended run never changes.

An incarnation is the log index at which a worker joined, so a worker that rejoins is a new
one, and commands about the previous incarnation do not affect it.

The fleet is a record like that of a run, and the agents of hosts are its members, so that joins,
leases and incarnations are those of workers. The offer of a run tells agents where its command listens,
and holds the certificate and the secret by which both sides recognize each other. The command decides
what an agent starts, over its own connection: the log has one entry for each run, not one for each
process. An offer is part of no change and no answer to viewers, who may follow the change feed.

Commands are members of a record of their own, under the name of the run that they train. There, a living
member is not replaced by another of its name: two commands never train one run.

The epoch of a shard's placement grows with every change. Each push carries it, so that a former
primary that has not been notified yet is refused.
"""

import re

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import generations, results
from paceline.coordinator.state.model import COMMANDS, ENDED, FLEET, STANDING, RunRecord, keep_newest
from paceline.coordinator.state.results import ApplyContext

MAX_OPEN_RUNS = 10_000
MAX_ENDED_RUNS = 1_000
_RUN_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,62}")


def create_run(context: ApplyContext, request: pb.CreateRun) -> pb.Run | pb.Refusal:
    refusal = _why_not_create(context, request)
    if refusal is not None:
        return refusal
    run = pb.Run(
        run=request.run,
        phase=pb.RUN_WAITING,
        plan=request.plan,
        min_workers=request.min_workers,
        max_workers=request.max_workers,
        samples=request.samples,
        launcher=request.launcher,
        external_id=request.external_id,
        want_workers=request.want_workers,
        created_ms=context.now_ms,
    )
    context.state.runs[request.run] = RunRecord(run)
    context.changed(run)
    return run


def end_run(context: ApplyContext, request: pb.EndRun) -> pb.Run | pb.Refusal:
    record = results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    if request.run in STANDING:
        return results.invalid(f"the record {request.run!r} does not end", "end a run, or stop its members")
    if request.phase not in ENDED:
        return results.invalid(
            f"run {request.run!r} cannot end in phase {request.phase}",
            "end it as finished, failed or stopped",
        )
    generations.end_newest(context, record, "the run ended")
    for worker in list(record.workers.values()):
        retire_worker(context, record, worker, pb.WORKER_LEFT, "the run ended")
    vacate_servers(context, record)
    record.run.phase = request.phase
    record.run.reason = request.reason
    record.run.ended_ms = context.now_ms
    record.offer = None
    context.changed(record.run)
    context.state.ended_runs[request.run] = context.state.runs.pop(request.run)
    for forgotten in keep_newest(context.state.ended_runs, MAX_ENDED_RUNS):
        _forget_run(context, forgotten.run)
    return record.run


def commit_step(context: ApplyContext, request: pb.CommitStep) -> pb.Run | pb.Refusal:
    record = results.current_run(context.state, request.run, request.generation)
    if isinstance(record, pb.Refusal):
        return record
    run = record.run
    lowest = max(run.committed_step, record.generations[request.generation].step)
    if request.step < lowest:
        return results.not_now(
            f"step {request.step} of run {request.run!r} is before step {lowest}",
            "steps are committed forward only",
        )
    if request.step > run.committed_step:  # otherwise another worker committed it first
        run.committed_step = request.step
        context.changed(run)
    return run


def _why_not_create(context: ApplyContext, request: pb.CreateRun) -> pb.Refusal | None:
    if not _RUN_NAME.fullmatch(request.run):
        return results.invalid(
            f"{request.run!r} is not a valid run name",
            "use 1 to 63 lower-case letters, digits or . _ -, a letter or digit first",
        )
    if request.run in STANDING:
        return results.invalid(f"the name {request.run!r} is reserved", "choose another name")
    if request.run in context.state.runs or request.run in context.state.ended_runs:
        return results.exists(
            f"there is already a run {request.run!r}", "choose another name; names of ended runs stay in use"
        )
    if request.min_workers < 1:
        return results.invalid(
            f"run {request.run!r} needs {request.min_workers} workers", "set min_workers to 1 or more"
        )
    if request.max_workers and request.max_workers < request.min_workers:
        return results.invalid(
            f"run {request.run!r} allows {request.max_workers} workers at most, but needs "
            f"{request.min_workers}",
            "set max_workers to 0 (no limit) or to min_workers or more",
        )
    if len(context.state.runs) >= MAX_OPEN_RUNS:
        return results.not_now(f"{MAX_OPEN_RUNS} runs have not ended", "end finished ones")
    return None


def _forget_run(context: ApplyContext, run: pb.Run) -> None:
    state = context.state
    state.forgotten_generation = max(state.forgotten_generation, run.generation)
    for number in [number for number, action in state.actions.items() if action.run == run.run]:
        del state.actions[number]


AGENT_ROLE = "agent"
COMMAND_ROLE = "command"
_STANDING_ROLES = {FLEET: (AGENT_ROLE,), COMMANDS: (COMMAND_ROLE,)}
WORKER_ROLES = ("worker", "server", "spare")
MAX_LIVE_WORKERS = 10_000  # per run
MAX_ENDED_WORKERS = 1_000  # per run
_WORKER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


def join_run(context: ApplyContext, request: pb.JoinRun) -> pb.Worker | pb.Refusal:
    is_standing = request.run in STANDING
    record = _standing(context, request.run) if is_standing else results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    role = request.role or "worker"
    refusal = _why_not_join(record, request.worker, role)
    if refusal is not None:
        return refusal
    earlier = record.workers.get(request.worker)
    if earlier is not None:
        end_worker(context, record, earlier, pb.WORKER_LOST, "replaced by a new incarnation")
    worker = pb.Worker(
        run=request.run,
        worker=request.worker,
        incarnation=context.index,
        phase=pb.WORKER_JOINED,
        address=request.address,
        role=role,
        facts=request.facts,
        joined_ms=context.now_ms,
    )
    record.workers[request.worker] = worker
    if request.run not in context.state.runs:  # the first member opens it
        context.state.runs[request.run] = record
        context.changed(record.run)
    context.changed(worker)
    return worker


def _standing(context: ApplyContext, name: str) -> RunRecord:
    """The record of the fleet or of commands; it becomes part of the state with its first member."""
    run = pb.Run(run=name, phase=pb.RUN_RUNNING, min_workers=1, created_ms=context.now_ms)
    return context.state.runs.get(name) or RunRecord(run)


def leave_run(context: ApplyContext, request: pb.LeaveRun) -> pb.Worker | pb.Refusal:
    return _end_named_worker(context, request, pb.WORKER_LEFT)


def lose_worker(context: ApplyContext, request: pb.LoseWorker) -> pb.Worker | pb.Refusal:
    return _end_named_worker(context, request, pb.WORKER_LOST)


def end_worker(
    context: ApplyContext, record: RunRecord, worker: pb.Worker, phase: pb.WorkerPhase, reason: str
) -> None:
    was_active = worker.phase == pb.WORKER_ACTIVE
    retire_worker(context, record, worker, phase, reason)
    if was_active:
        verb = "left" if phase == pb.WORKER_LEFT else "was lost"
        generations.end_newest(
            context, record, f"worker {worker.worker} {verb}" + (f": {reason}" if reason else "")
        )
    release_worker(context, record, worker.worker)


def retire_worker(
    context: ApplyContext, record: RunRecord, worker: pb.Worker, phase: pb.WorkerPhase, reason: str
) -> None:
    """End a worker without the consequences for its generation and its placements."""
    worker.phase = phase
    worker.reason = reason
    worker.ended_ms = context.now_ms
    record.ended_workers[worker.incarnation] = record.workers.pop(worker.worker)
    keep_newest(record.ended_workers, MAX_ENDED_WORKERS)
    context.changed(worker)


def _end_named_worker(
    context: ApplyContext, request: pb.LeaveRun | pb.LoseWorker, phase: pb.WorkerPhase
) -> pb.Worker | pb.Refusal:
    record = results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    worker = record.workers.get(request.worker)
    if worker is not None and worker.incarnation == request.incarnation:
        end_worker(context, record, worker, phase, request.reason)
        return worker
    if worker is None and not any(gone.worker == request.worker for gone in record.ended_workers.values()):
        return results.not_found(f"run {request.run!r} has no worker {request.worker!r}", "list its workers")
    living = "it is not alive" if worker is None else f"{worker.incarnation} is alive"
    return results.fenced(
        f"incarnation {request.incarnation} of worker {request.worker!r} in run {request.run!r} is "
        f"over: {living}",
        "there is nothing to end; join again to be in the run",
    )


def _why_not_join(record: RunRecord, name: str, role: str) -> pb.Refusal | None:
    if not _WORKER_NAME.fullmatch(name):
        return results.invalid(
            f"{name!r} is not a valid worker name",
            "use 1 to 128 letters, digits or . _ : @ -, a letter or digit first",
        )
    roles = _STANDING_ROLES.get(record.run.run, WORKER_ROLES)
    if role not in roles:
        return results.invalid(
            f"there is no role {role!r} in {record.run.run!r}", f"use one of {', '.join(roles)}"
        )
    if role == COMMAND_ROLE and name in record.workers:
        facts = record.workers[name].facts
        return results.exists(
            f"the run is trained by process {facts.get('pid', '?')} on {facts.get('host', '?')}",
            "wait until it ends, or follow it:  paceline standby",
        )
    peers = len(record.workers) - (name in record.workers)
    if peers >= MAX_LIVE_WORKERS:
        return results.not_now(
            f"run {record.run.run!r} has {MAX_LIVE_WORKERS} living workers", "wait until some have left"
        )
    max_workers = record.run.max_workers
    if role == "worker" and 0 < max_workers <= peers and _num_workers_but(record, name) >= max_workers:
        return results.not_now(
            f"run {record.run.run!r} has {max_workers} workers, and allows no more",
            "join as a spare, or wait until one has left",
        )
    return None


def _num_workers_but(record: RunRecord, name: str) -> int:
    """Workers by role: spares and servers do not count."""
    return sum(worker.role == "worker" and worker.worker != name for worker in record.workers.values())


MAX_SERVER_SHARDS = 4_096


def place_server(context: ApplyContext, request: pb.PlaceServer) -> pb.ServerPlace | pb.Refusal:
    record = results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not_place(record, request)
    if refusal is not None:
        return refusal
    known = record.servers.get(request.shard) or pb.ServerPlace(run=request.run, shard=request.shard)
    return _put_server(context, record, known, request.primary, request.backup)


def promote_backup(context: ApplyContext, request: pb.PromoteBackup) -> pb.ServerPlace | pb.Refusal:
    record = results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    placement = record.servers.get(request.shard)
    if placement is None:
        return results.not_found(
            f"shard {request.shard} of run {request.run!r} is not placed", "place it first"
        )
    if request.epoch != placement.epoch:
        return _stale_epoch(request.run, request.shard, request.epoch, placement.epoch)
    if not placement.backup:
        return results.not_now(
            f"shard {request.shard} of run {request.run!r} has no backup",
            "place the shard again, with a backup",
        )
    return _put_server(context, record, placement, placement.backup, "")


def release_worker(context: ApplyContext, record: RunRecord, worker: str) -> None:
    """Remove a worker that ended from all placements; where it was primary the backup takes over at once."""
    for placement in list(record.servers.values()):
        if placement.primary == worker:
            _put_server(context, record, placement, placement.backup, "")
        elif placement.backup == worker:
            _put_server(context, record, placement, placement.primary, "")


def vacate_servers(context: ApplyContext, record: RunRecord) -> None:
    """The run ended: no shard has a primary or a backup any more."""
    for placement in list(record.servers.values()):
        if placement.primary or placement.backup:
            _put_server(context, record, placement, "", "")


def _put_server(
    context: ApplyContext, record: RunRecord, known: pb.ServerPlace, primary: str, backup: str
) -> pb.ServerPlace:
    """A new message each time: a message that is changed in place keeps the memory of its old values."""
    placement = pb.ServerPlace(
        run=known.run, shard=known.shard, primary=primary, backup=backup, epoch=known.epoch + 1
    )
    record.servers[known.shard] = placement
    context.changed(placement)
    return placement


def _why_not_place(record: RunRecord, request: pb.PlaceServer) -> pb.Refusal | None:
    if request.shard >= MAX_SERVER_SHARDS:
        return results.invalid(
            f"shard {request.shard} is beyond the last one", f"use shards 0 to {MAX_SERVER_SHARDS - 1}"
        )
    known = record.servers.get(request.shard)
    epoch = 0 if known is None else known.epoch
    if request.epoch != epoch:
        return _stale_epoch(request.run, request.shard, request.epoch, epoch)
    if request.primary == request.backup:
        return results.invalid(
            f"{request.primary!r} was named as primary and as backup",
            "name two workers, or leave the backup empty",
        )
    for name in (request.primary, request.backup) if request.backup else (request.primary,):
        if name not in record.workers:
            return results.not_found(
                f"worker {name!r} of run {request.run!r} is not alive", "name living workers only"
            )
    return None


def _stale_epoch(run: str, shard: int, given: int, current: int) -> pb.Refusal:
    return results.fenced(
        f"shard {shard} of run {run!r} is in epoch {current}, not {given}",
        "read the placement again, then retry",
    )


SECRET_BYTES = 32
MAX_CERTIFICATE_BYTES = 16 << 10


def offer_run(context: ApplyContext, request: pb.OfferRun) -> pb.Run | pb.Refusal:
    """Offer a run, or replace its offer. Agents read the offers when the record of the fleet changes."""
    record = results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    if request.run in STANDING:
        return results.invalid(f"{request.run!r} is no run that could be offered", "name a run")
    if len(request.secret) != SECRET_BYTES or not request.address:
        return results.invalid(
            f"the offer of run {request.run!r} has a secret of {len(request.secret)} bytes",
            f"send an address and {SECRET_BYTES} random bytes",
        )
    if len(request.certificate) > MAX_CERTIFICATE_BYTES:
        return results.invalid(
            f"the certificate of run {request.run!r} has {len(request.certificate)} bytes",
            f"send {MAX_CERTIFICATE_BYTES} bytes at most",
        )
    offer = pb.OfferRun()
    offer.CopyFrom(request)
    record.offer = offer
    fleet = context.state.runs.get(FLEET)
    if fleet is not None:
        context.changed(fleet.run)
    return record.run
