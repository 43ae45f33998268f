"""What does a worker of an elastic run do from birth to end? It joins, trains in generations, and reports."""

import os
from collections.abc import Callable

import torch

from paceline.checkpoints.catalog import newest_shared
from paceline.checkpoints.store import read_snapshot
from paceline.clock import SystemClock
from paceline.coordinator.client import Client
from paceline.coordinator.shell import security
from paceline.coordinator.shell.identity import Role
from paceline.ids import Clock, Rank
from paceline.tasks.port import Task
from paceline.worker.control import WorkerControl
from paceline.worker.elastic import ElasticWorker
from paceline.worker.elastic_strategies import ElasticStrategy
from paceline.worker.gradient import GradientSource
from paceline.worker.loop import Saver, Worker
from paceline.worker.membership import Membership
from paceline.worker.participant import Report, evaluate, state_hash
from paceline.worker.replica import Replica
from paceline.worker.saving import NoSaver, SharedSaver
from paceline.worker.wiring import CoordinatorSeat, Seat, build_task, open_log, set_up_torch


def work_elastic(index: int, seat: Seat, report: Callable[[Report], None]) -> None:
    set_up_torch(seat.plan)
    task = build_task(seat.plan)
    elastic = _build(index, seat, task, report)
    elastic.log.write("worker_started", pid=os.getpid(), clock=elastic.committed)
    started_ns = elastic.clock.now_ns()
    try:
        ran = elastic.run()
    finally:
        elastic.membership.close("it has finished")
    steps_s = (elastic.clock.now_ns() - started_ns) / 1e9
    arena = elastic.replica.arena
    facts: Report = {"steps": ran.finished, "stopped": ran.was_stopped, "steps_s": steps_s}
    facts["state_sha256"] = state_hash(arena.named_state())
    if elastic.rank == 0:
        facts["metrics"] = evaluate(task, arena.module)
    elastic.log.write("worker_finished", steps=ran.finished, reason="stopped" if ran.was_stopped else "done")
    elastic.log.close()
    report(facts)


def _build(index: int, seat: Seat, task: Task, report: Callable[[Report], None]) -> ElasticWorker:
    assert seat.coordinator is not None, "an elastic run has a coordinator"
    plan, clock, place, name = seat.plan, SystemClock(), seat.coordinator, f"worker-{index}"
    replica = Replica(plan, task, torch.device("cpu"), clock)
    log = open_log(plan, seat.run_dir, name, clock)
    control = WorkerControl(seat.control, index, lambda text: report({"ev": "note", "text": text}))
    source = GradientSource(plan, task, torch.device("cpu"), clock)

    def worker_for(strategy: ElasticStrategy, rank: int) -> Worker:
        saver: Saver = NoSaver()
        if rank == 0:
            saver = SharedSaver(plan, replica, strategy, root=seat.checkpoints, log=log)
            saver.begin_at(Clock(strategy.committed))
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
        )

    elastic = ElasticWorker(
        plan=plan,
        name=name,
        replica=replica,
        clock=clock,
        log=log,
        membership=Membership(
            lambda: coordinator_client(place), run=place.run, worker=name, note=control.note
        ),
        folder=seat.run_dir / "generations",
        worker_for=worker_for,
        finished=control.finished,  # a replacement goes on counting where the lost one stood
    )
    # Whoever is replaced while others live is healed by them; if all were lost, this is where they go on.
    newest = newest_shared(seat.checkpoints, plan.num_workers)
    folder = seat.resume_from if newest is None else newest.folder
    if folder is not None:
        saved = read_snapshot(folder, "worker-0")
        elastic.take_up(saved)
        elastic.committed = int(saved.facts["at"])
    return elastic


def coordinator_client(place: CoordinatorSeat) -> Client:
    access = security.client_access(token_file=place.token_file, role=Role.WORKER)
    return Client(
        place.addresses,
        lambda address: security.open_channel(address, access),
        metadata=security.call_metadata(access),
    )
