"""What does a worker of an elastic run do from birth to end? It joins, trains in generations, and reports."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from paceline.checkpoints.snapshot import read_snapshot
from paceline.coordinator.client.aio import Client, RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.coordinator.server.access_policy import Role
from paceline.core.clock import Clock, SystemClock
from paceline.core.ids import Rank
from paceline.events.log import Log
from paceline.plan.catalog import MODES, Channel, is_split
from paceline.plan.plan import Plan
from paceline.tasks.port import Task
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.ports import Collective
from paceline.transport.shm_collective import ShmCollective
from paceline.transport.torch_dist import TorchCollective
from paceline.worker.checkpointing import NoSaver, SharedSaver, writer_for
from paceline.worker.context import CoordinatorEndpoint, WorkerContext, open_log
from paceline.worker.control import WorkerControl
from paceline.worker.elastic.catalogue import (
    REPLY_TIMEOUT_S,
    WHO,
    RunCatalogue,
    find_resume_folder,
    read_catalogue,
)
from paceline.worker.elastic.generations import EVALUATING, POLL_S, ElasticStrategy, ElasticWorker
from paceline.worker.elastic.membership import Membership
from paceline.worker.evaluation import NO_EVALUATION, EvaluationHook, Evaluations, Evaluator, Validation
from paceline.worker.gradient import GradientSource
from paceline.worker.loop import Saver, Worker
from paceline.worker.participant import evaluate, state_hash
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report
from paceline.worker.wiring import build_task, set_up_torch

ReportSink = Callable[[Report], None]
REVOKE_S = 3.0  # how long the coordinator's answer is waited for


def work_elastic(index: int, seat: WorkerContext, report: ReportSink) -> None:
    set_up_torch(seat.plan)
    task = build_task(seat.plan)
    elastic, saver, control = _build(index, seat, task, report)
    elastic.log.write("worker_started", pid=os.getpid(), clock=elastic.committed, node=socket.gethostname())
    started_ns = elastic.clock.now_ns()
    try:
        ran = elastic.run()
        steps_s = (elastic.clock.now_ns() - started_ns) / 1e9
        _await_last_checkpoint(elastic, saver, control)
    finally:
        saver.close()
        elastic.membership.close("it was asked to" if elastic.has_left else "it has finished")
    is_early = elastic.has_left or elastic.is_late  # its replica is not that of the run's end
    arena = elastic.replica.arena
    facts: Report = {"steps": ran.finished, "stopped": ran.was_stopped, "steps_s": steps_s}
    facts["run_steps"] = elastic.steps_done
    facts["state_sha256"] = state_hash(arena.named_state())
    if elastic.evaluations is not None:  # every worker reports it: others may be lost
        elastic.evaluations.conclude(facts)
    if elastic.rank == 0 and not is_early:
        facts["metrics"] = evaluate(task, arena.module, seat.run_dir)
    reason = "left" if is_early else "stopped" if ran.was_stopped else "done"
    elastic.log.write("worker_finished", steps=ran.finished, reason=reason)
    elastic.log.close()
    report({"ev": "left"} if is_early else facts)


def _await_last_checkpoint(elastic: ElasticWorker, saver: SharedSaver, control: WorkerControl) -> None:
    """Whoever leaves ends the generation, and what is saved in one can only be noted while it lasts."""
    if elastic.has_left or elastic.is_late:
        return
    if elastic.rank == 0:
        saver.close()
        control.says_saved()
    waited_s = 0.0
    while not (
        control.is_saved() or elastic.membership.is_over(elastic.generation) or waited_s > REPLY_TIMEOUT_S
    ):
        elastic.clock.sleep(POLL_S)
        waited_s += POLL_S


def _build(
    index: int, seat: WorkerContext, task: Task, report: ReportSink
) -> tuple[ElasticWorker, SharedSaver, WorkerControl]:
    assert seat.coordinator is not None, "an elastic run has a coordinator"
    plan, clock, place, name = seat.plan, SystemClock(), seat.coordinator, f"worker-{index}"
    replica = Replica(plan, task, torch.device("cpu"), clock)
    replica.prepare_optimizer()
    log = open_log(plan, seat.run_dir, name, clock)
    control = WorkerControl(seat.control, index, lambda text: report({"ev": "note", "text": text}))
    source = GradientSource(plan, task, torch.device("cpu"), clock, ahead=True)
    membership = Membership(
        lambda: coordinator_client(place),
        run=place.run,
        worker=name,
        note=control.note,
        is_alone=control.is_without_coordinator,
    )
    writer = writer_for(plan, seat.checkpoints, WHO, RunCatalogue(membership, place.run), participants=1)
    shared = SharedSaver(plan, replica, log=log, report=report, writer=writer)
    shared.takes_wish = control.takes_save

    record = None if plan.evaluation is None else Evaluations(plan, replica.arena, clock)
    if record is not None:
        shared.also = record.live

    def worker_for(strategy: ElasticStrategy, world: GenerationWorld) -> Worker:
        rank = world.rank
        if rank == 0:
            shared.enter(elastic.generation, strategy, strategy.committed)
        saver: Saver = shared if rank == 0 else NoSaver()
        return Worker(
            plan=plan,
            rank=Rank(index),
            replica=replica,
            strategy=strategy,
            source=source,
            clock=clock,
            log=log,
            control=control,
            saver=saver,
            evaluator=evaluator_in(plan, task, record, strategy, world, clock, replica, log, report),
        )

    elastic = _kind(plan)(
        plan=plan,
        name=name,
        replica=replica,
        clock=clock,
        log=log,
        membership=membership,
        folder=seat.run_dir / "generations",
        worker_for=worker_for,
        asked=control,
        voice=_DecisionListener(log, report),
        save=shared.save_between,
        revoke=partial(revoke, membership, place.run),
        evaluations=record,
        finished=control.finished,  # a replacement goes on counting where the lost one stood
    )
    _resume(elastic, seat, read_catalogue(membership, place.run), control.note)
    return elastic, shared, control


def evaluator_in(
    plan: Plan,
    task: Task,
    record: Evaluations | None,
    strategy: ElasticStrategy,
    world: GenerationWorld,
    clock: Clock,
    replica: Replica,
    log: Log,
    report: ReportSink,
) -> EvaluationHook:
    """Of a generation: its workers share the validation data, and its rank 0 tells what was measured."""
    if record is None:
        return NO_EVALUATION
    channel, timeout_s = MODES[plan.mode].channel, plan.timeout_s
    collective: Collective | None = None
    if channel is not Channel.TORCH:
        collective = ShmCollective(
            world, Rank(world.rank), clock=clock, timeout_s=timeout_s, first_place=EVALUATING
        )
    elif not is_split(plan.mode):  # a model in parts computes all pieces together
        collective = TorchCollective(device=replica.arena.state.device, clock=clock, timeout_s=timeout_s)
    validation = Validation(task, replica.arena, seed=plan.seed, collective=collective, channel=channel)
    tell = report if world.rank == 0 else None
    return Evaluator(plan, record, validation, log=log, report=tell, steps=lambda: strategy.steps_done)


def _kind(plan: Plan) -> type[ElasticWorker]:
    if MODES[plan.mode].channel is not Channel.TORCH:
        return ElasticWorker
    from paceline.worker.elastic.ddp import DdpElasticWorker  # brings much of torch that others do not need

    return DdpElasticWorker


def _resume(
    elastic: ElasticWorker, seat: WorkerContext, catalogue: list[pb.Checkpoint], note: Callable[[str], None]
) -> None:
    """Whoever is replaced while others live is healed by them; if all were lost, this is where they go on."""
    num_workers = seat.plan.num_workers
    folder = find_resume_folder(catalogue, seat.checkpoints, num_workers, seat.resume_from, note)
    if folder is not None:
        saved = read_snapshot(folder, WHO)
        elastic.take_up(saved)
        elastic.committed = int(saved.facts["at"])
    elif catalogue:
        elastic.was_saved_at = catalogue[-1].step


def revoke(membership: Membership, run: str, number: int, why: str) -> None:
    """Ask for another generation; if nobody hears it, or it is over, it comes without us."""
    with suppress(RefusedError, UnreachableError, TimeoutError):
        revoking = pb.RevokeGeneration(run=run, generation=number, reason=why)
        membership.write("Runs.Revoke", revoking, pb.Generation, REVOKE_S)


class _DecisionListener:
    def __init__(self, log: Log, report: Callable[[Report], None]) -> None:
        self._log, self._report = log, report

    def event(self, kind: str, **fields: str | int | float) -> None:
        self._log.write(kind, **fields)
        self._log.flush()

    def note(self, text: str) -> None:
        self._report({"ev": "note", "text": text})

    def ask_to_replace(self, worker: str, reason: str) -> None:
        self._report({"ev": "slow", "worker": worker, "reason": reason})


def coordinator_client(place: CoordinatorEndpoint) -> Client:
    access = security.client_access(token_file=place.token_file, role=Role.WORKER)
    return Client(
        place.addresses,
        lambda address: security.open_channel(address, access),
        metadata=security.call_metadata(access),
    )
