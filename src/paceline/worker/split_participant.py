"""What does a worker of an elastic fsdp run do from birth to end? It joins, trains its part, and reports."""

import os
import socket
from collections.abc import Callable
from functools import partial

import torch

from paceline.clock import SystemClock
from paceline.ids import Rank
from paceline.plan.catalog import MODES
from paceline.strategies.port import Strategy
from paceline.tasks.port import Task
from paceline.transport.generation_world import GenerationWorld
from paceline.worker.control import WorkerControl
from paceline.worker.elastic_participant import coordinator_client, evaluator_in, revoke
from paceline.worker.elastic_strategies import ElasticStrategy
from paceline.worker.gradient import GradientSource
from paceline.worker.loop import Worker
from paceline.worker.membership import Membership
from paceline.worker.replica import Replica
from paceline.worker.run_folder import open_log
from paceline.worker.saving import NoSaver, writer_for
from paceline.worker.seat import Seat
from paceline.worker.sharded_replica import ShardedReplica
from paceline.worker.sharing import Silent
from paceline.worker.split_elastic import SplitElasticWorker, SplitSaver
from paceline.worker.telling import Report
from paceline.worker.wiring import build_task, set_up_torch

Tell = Callable[[Report], None]


def work_split(index: int, seat: Seat, report: Tell) -> None:
    assert MODES[seat.plan.mode].is_split, "other modes have a participant of their own"
    set_up_torch(seat.plan)
    elastic = _build(index, seat, build_task(seat.plan), report)
    elastic.log.write("worker_started", pid=os.getpid(), clock=elastic.committed, node=socket.gethostname())
    started_ns = elastic.clock.now_ns()
    try:
        ran = elastic.run()
        steps_s = (elastic.clock.now_ns() - started_ns) / 1e9
    finally:
        elastic.drain()
        elastic.membership.close("it was asked to" if elastic.has_left else "it has finished")
    is_early = not elastic.final  # what it has is not the run's end
    reason = "left" if is_early else "stopped" if ran.was_stopped else "done"
    elastic.log.write("worker_finished", steps=ran.finished, reason=reason)
    elastic.log.close()
    facts: Report = {"steps": ran.finished, "stopped": ran.was_stopped, "steps_s": steps_s, **elastic.final}
    facts["run_steps"] = elastic.steps_done
    if elastic.evaluations is not None:
        elastic.evaluations.conclude(facts)
    report({"ev": "left"} if is_early else facts)


def _build(index: int, seat: Seat, task: Task, report: Tell) -> SplitElasticWorker:
    assert seat.coordinator is not None, "an elastic run has a coordinator"
    plan, clock, place, name = seat.plan, SystemClock(), seat.coordinator, f"worker-{index}"
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

    def saver_for(replica: ShardedReplica, strategy: Strategy, rank: int, parts: int) -> SplitSaver:
        writer = writer_for(plan, seat.checkpoints, f"worker-{rank}", participants=parts)
        return SplitSaver(plan, replica, strategy, log=log, writer=writer, report=report)

    def worker_for(strategy: ElasticStrategy, world: GenerationWorld) -> Worker:
        record, replica = elastic.evaluations, elastic.replica
        return Worker(
            plan=plan,
            rank=Rank(index),
            replica=replica,
            strategy=strategy,
            source=source,
            clock=clock,
            log=log,
            control=control,
            saver=elastic.saver or NoSaver(),
            evaluator=evaluator_in(plan, task, record, strategy, world, clock, replica, log, report),
        )

    elastic = SplitElasticWorker(
        plan=plan,
        name=name,
        replica=Replica(plan, task, torch.device("cpu"), clock),  # until it is split over a generation
        clock=clock,
        log=log,
        membership=membership,
        folder=seat.run_dir / "generations",
        worker_for=worker_for,
        asked=control,
        voice=Silent(),
        save=lambda _committed, _carried: None,
        revoke=partial(revoke, membership, place.run),
        finished=control.finished,  # a replacement goes on counting where the lost one stood
        task=task,
        root=seat.checkpoints,
        saver_for=saver_for,
    )
    return elastic
