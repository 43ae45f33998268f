"""Elastic worker as a participant: joins, resumes or heals, trains in generations, and reports."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from paceline.checkpoints.snapshot import read_snapshot
from paceline.coordinator.client.aio import Client, RefusedError, UnreachableError
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.coordinator.server.access_policy import Role
from paceline.core.ids import Rank
from paceline.events.log import Log
from paceline.plan.catalog import MODES, Channel
from paceline.tasks.port import Task
from paceline.transport.generation.ports import EnterWorld, TrainingWorld
from paceline.worker.checkpointing import NoSaver, SharedSaver, writer_for
from paceline.worker.context import WorkerContext, open_log
from paceline.worker.control import WorkerControl
from paceline.worker.elastic.catalogue import (
    REPLY_TIMEOUT_S,
    WHO,
    RunCatalogue,
    find_resume_folder,
    read_catalogue,
)
from paceline.worker.elastic.generations import ElasticStrategy, ElasticWorker
from paceline.worker.elastic.membership import Membership
from paceline.worker.elastic.worlds import address_of, enter_world, facts_of, open_listener
from paceline.worker.evaluation import Evaluations
from paceline.worker.gradient import Source
from paceline.worker.loop import Saver, Steps, Worker, drive
from paceline.worker.participant import (
    Ending,
    TimedRun,
    evaluate,
    participant_steps,
    state_hash,
    timed_steps,
)
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report
from paceline.worker.wiring import (
    WorkerProcess,
    assemble_worker,
    build_source,
    build_task,
    device_of,
    generation_evaluator,
    set_up_torch,
)

ReportSink = Callable[[Report], None]
POLL_S = 0.002
REVOKE_S = 3.0  # how long the coordinator's answer is waited for


class ElasticWork(NamedTuple):
    """A worker that trains in generations, with the same replica."""

    worker: ElasticWorker
    source: Source
    steps: Steps[None]  # of its whole life, from joining the run to its report


def work_elastic(index: int, context: WorkerContext, report: ReportSink) -> None:
    work = open_elastic(index, context, report)
    drive(work.steps, work.source)


def open_elastic(index: int, context: WorkerContext, report: ReportSink) -> ElasticWork:
    """Join the run, and take the newest checkpoint if there is one."""
    set_up_torch(context.plan)
    task = build_task(context.plan)
    source = build_source(context.plan, task, device_of(context.plan, index), context.clock)
    elastic, saver, control = _build(index, context, task, source, report)

    def train() -> Steps[TimedRun]:
        result = yield from timed_steps(elastic.clock, elastic.steps())
        _await_last_checkpoint(elastic, saver, control)
        return result

    def release() -> None:
        saver.close()
        elastic.membership.close("it was asked to" if elastic.has_left else "it has finished")

    steps = participant_steps(
        elastic.log,
        report,
        clock=elastic.committed,
        fields={"node": context.node},
        train=train,
        release=release,
        conclude=lambda result: _conclude(elastic, task, context, result),
    )
    return ElasticWork(elastic, source, steps)


def _conclude(elastic: ElasticWorker, task: Task, context: WorkerContext, result: TimedRun) -> Ending:
    is_early = elastic.has_left or elastic.is_late  # its replica is not that of the run's end
    arena = elastic.replica.arena
    facts: Report = {**result.facts, "run_steps": elastic.steps_done}
    facts["state_sha256"] = state_hash(arena.named_state())
    if elastic.evaluations is not None:  # every worker reports it: others may be lost
        elastic.evaluations.conclude(facts)
    if elastic.rank == 0 and not is_early:
        facts["metrics"] = evaluate(task, arena.module, context.run_dir)
    return elastic_ending(result, facts, is_early=is_early)


def elastic_ending(result: TimedRun, facts: Report, *, is_early: bool) -> Ending:
    """A worker that left early has no final state of the run to report."""
    if is_early:
        return Ending(steps=result.finished, reason="left", facts=lambda: {"ev": "left"})
    reason = "stopped" if result.was_stopped else "done"
    return Ending(steps=result.finished, reason=reason, facts=lambda: facts)


def _await_last_checkpoint(elastic: ElasticWorker, saver: SharedSaver, control: WorkerControl) -> None:
    """Leaving ends the generation, and a checkpoint can be recorded only during its generation."""
    if elastic.has_left or elastic.is_late:
        return
    if elastic.rank == 0:
        saver.close()
        control.report_saved()
    waited_s = 0.0
    while not (
        control.is_saved() or elastic.membership.is_over(elastic.generation) or waited_s > REPLY_TIMEOUT_S
    ):
        elastic.clock.sleep(POLL_S)
        waited_s += POLL_S


def _build(
    index: int, context: WorkerContext, task: Task, source: Source, report: ReportSink
) -> tuple[ElasticWorker, SharedSaver, WorkerControl]:
    assert context.coordinator is not None, "an elastic run has a coordinator"
    plan = context.plan
    clock = context.clock
    endpoint = context.coordinator
    name = f"worker-{index}"
    device = device_of(plan, index)
    replica = Replica(plan, task, device, clock)
    replica.prepare_optimizer()
    log = open_log(plan, context.run_dir, name, clock)
    control = WorkerControl(context.control, index, lambda text: report({"ev": "note", "text": text}))
    process = WorkerProcess(plan=plan, rank=Rank(index), source=source, clock=clock, log=log, control=control)
    membership, enter = open_membership(context, name, control)
    writer = writer_for(
        plan,
        context.checkpoints,
        WHO,
        RunCatalogue(membership, endpoint.run),
        participants=1,
        disk=context.disk(1),
    )
    shared = SharedSaver(plan, replica, log=log, report=report, writer=writer)
    shared.takes_save = control.takes_save

    record = None if plan.evaluation is None else Evaluations(plan, replica.arena, clock)
    if record is not None:
        shared.also = record.live

    def worker_for(strategy: ElasticStrategy, world: TrainingWorld) -> Worker:
        rank = world.rank
        if rank == 0:
            shared.enter(elastic.generation, strategy, strategy.committed)
        saver: Saver = shared if rank == 0 else NoSaver()
        evaluator = generation_evaluator(
            process, task, record, world, replica, steps_done=lambda: strategy.steps_done, report=report
        )
        return assemble_worker(process, replica=replica, strategy=strategy, saver=saver, evaluator=evaluator)

    elastic = _kind(context)(
        plan=plan,
        name=name,
        replica=replica,
        clock=clock,
        log=log,
        membership=membership,
        enter=enter,
        worker_for=worker_for,
        requests=control,
        listener=_DecisionListener(log, report),
        save=shared.save_between,
        revoke=partial(revoke, membership, endpoint.run),
        evaluations=record,
        finished=control.finished,  # a replacement continues the count of the lost worker
    )
    _resume(elastic, context, read_catalogue(membership, endpoint.run), control.note)
    return elastic, shared, control


def open_membership(
    context: WorkerContext, name: str, control: WorkerControl
) -> tuple[Membership, EnterWorld]:
    """The worker's membership of the run, and its way into the world of each generation."""
    endpoint = context.coordinator
    assert endpoint is not None, "an elastic run has a coordinator"
    listener = open_listener(context, name)
    membership = Membership(
        lambda: coordinator_client(endpoint),
        run=endpoint.run,
        worker=name,
        note=control.note,
        address=address_of(listener),
        facts={"host": context.node, **facts_of("" if listener is None else listener.certificate)},
        is_alone=control.is_without_coordinator,
    )
    return membership, enter_world(context, listener, membership)


def _kind(context: WorkerContext) -> Callable[..., ElasticWorker]:
    if MODES[context.plan.mode].channel is not Channel.TORCH:
        return ElasticWorker
    from paceline.worker.elastic.ddp import DdpElasticWorker  # brings much of torch that others do not need

    return partial(DdpElasticWorker, folder=context.run_dir / "generations")


def _resume(
    elastic: ElasticWorker,
    context: WorkerContext,
    catalogue: list[pb.Checkpoint],
    note: Callable[[str], None],
) -> None:
    """Used after the loss of all workers; otherwise the remaining workers heal a replacement."""
    num_workers = context.plan.num_workers
    here = [entry for entry in catalogue if context.agent is None or _is_here(entry, context.checkpoints)]
    folder = find_resume_folder(here, context.checkpoints, num_workers, context.resume_from, note)
    if folder is not None:
        saved = read_snapshot(folder, WHO)
        elastic.take_up(saved)
        elastic.committed = int(saved.facts["at"])
    elif catalogue:
        elastic.was_saved_at = catalogue[-1].step


def _is_here(entry: pb.Checkpoint, root: Path) -> bool:
    """Whether the command sent it: it does only while no worker has the state in memory."""
    return (root / Path(entry.shards[0].uri).parent.name).is_dir()


def revoke(membership: Membership, run: str, number: int, why: str) -> None:
    """Request another generation. A failed request is ignored: the next generation does not depend on it."""
    with suppress(RefusedError, UnreachableError, TimeoutError):
        revoking = pb.RevokeGeneration(run=run, generation=number, reason=why)
        membership.write("Runs.Revoke", revoking, pb.Generation, REVOKE_S)


class _DecisionListener:
    def __init__(self, log: Log, report: Callable[[Report], None]) -> None:
        self._log = log
        self._report = report

    def event(self, kind: str, **fields: str | int | float) -> None:
        self._log.write(kind, **fields)
        self._log.flush()

    def note(self, text: str) -> None:
        self._report({"ev": "note", "text": text})

    def ask_to_replace(self, worker: str, reason: str) -> None:
        self._report({"ev": "slow", "worker": worker, "reason": reason})


def coordinator_client(endpoint: CoordinatorEndpoint) -> Client:
    return open_coordinators(endpoint.coordinators, Role.WORKER).client()
