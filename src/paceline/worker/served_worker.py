"""What does a worker of an elastic run with parameter servers do from birth to end?"""

import os
import socket
from collections.abc import Callable
from functools import partial

import torch

from paceline.checkpoints.store import read_snapshot
from paceline.clock import SystemClock
from paceline.events.log import EventLog
from paceline.ids import Clock as StepClock
from paceline.ids import Rank
from paceline.strategies.port import Links, Strategy
from paceline.worker import parts
from paceline.worker.control import WorkerControl
from paceline.worker.elastic_participant import coordinator_client
from paceline.worker.gradient import GradientSource
from paceline.worker.loop import Worker
from paceline.worker.participant import Report
from paceline.worker.place_membership import PlaceMembership, Places
from paceline.worker.replica import Replica
from paceline.worker.run_folder import open_log
from paceline.worker.saving import RowSaver
from paceline.worker.seat import Seat
from paceline.worker.wiring import build_task, set_up_torch, strategy_class


def work_with_servers(index: int, seat: Seat, report: Callable[[Report], None]) -> None:
    assert seat.coordinator is not None, "an elastic run has a coordinator"
    plan, place, name = seat.plan, seat.coordinator, f"worker-{index}"
    set_up_torch(plan)
    log = open_log(plan, seat.run_dir, name, SystemClock())
    control = WorkerControl(seat.control, index, lambda text: report({"ev": "note", "text": text}))
    membership = PlaceMembership(
        partial(coordinator_client, place),
        run=place.run,
        worker=name,
        note=control.note,
        is_alone=control.is_without_coordinator,
    )
    first = _first_step(seat, control, Rank(index))
    log.write("worker_started", pid=os.getpid(), clock=first, node=socket.gethostname())
    started_ns = SystemClock().now_ns()
    try:
        worker = _worker(Rank(index), seat, membership, log, control)
        worker.strategy.prepare(worker.replica, first)
        ran = worker.run(first)
        worker.strategy.close()
    finally:
        membership.close("it has finished")
    log.write("worker_finished", steps=ran.finished, reason="done")
    log.close()
    steps_s = (SystemClock().now_ns() - started_ns) / 1e9
    report({"steps": ran.finished, "stopped": False, "steps_s": steps_s})


def _worker(rank: Rank, seat: Seat, membership: Places, log: EventLog, control: WorkerControl) -> Worker:
    plan, clock, cpu = seat.plan, SystemClock(), torch.device("cpu")
    task = build_task(plan)
    replica = Replica(plan, task, cpu, clock)
    store = parts.build_store(
        plan,
        rank,
        replica.arena.layout,
        membership=membership,
        token=seat.token,
        on_refused=lambda position, version: log.write("push_refused", position=position, version=version),
    )
    links = Links(rank=rank, world_size=plan.num_workers, clock=clock, store=store)
    strategy: Strategy = strategy_class(plan.mode)(plan, links)
    return Worker(
        plan=plan,
        rank=rank,
        replica=replica,
        strategy=strategy,
        source=GradientSource(plan, task, cpu, clock, ahead=True),
        clock=clock,
        log=log,
        control=control,
        saver=RowSaver(plan, log),
    )


def _first_step(seat: Seat, control: WorkerControl, rank: Rank) -> StepClock:
    """A replacement goes on counting where the lost one stood; a resumed run where it was saved."""
    saved = 0
    if seat.resume_from is not None:
        saved = int(read_snapshot(seat.resume_from, "server-0").facts["clocks"][str(rank)])
    return StepClock(max(saved, control.finished))
