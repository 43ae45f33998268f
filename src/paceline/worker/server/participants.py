"""Participants of an elastic run with parameter servers: the two servers, and a worker.

Two servers hold the same parameters. A server process starts without a role, and the coordinator assigns
one: the first server is primary; the other follows it as its backup, takes over when the primary is lost, or
starts again from the newest checkpoint when both were.
"""

import os
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from paceline.checkpoints.catalog import newest_complete
from paceline.checkpoints.snapshot import read_snapshot
from paceline.coordinator.client.aio import RefusedError
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import EventLog
from paceline.events.schema import FAILED
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.tasks.port import Task
from paceline.transport.elastic_store import ElasticHost
from paceline.transport.handshake import Member
from paceline.worker.checkpointing import ServerSaver
from paceline.worker.context import WorkerContext, open_log
from paceline.worker.control import WorkerControl
from paceline.worker.elastic.catalogue import ServerCatalogue
from paceline.worker.elastic.participant import coordinator_client
from paceline.worker.elastic.worlds import facts_of, open_dialer, peer_tls
from paceline.worker.evaluation import Validation
from paceline.worker.gradient import Source
from paceline.worker.loop import LoopResult, Steps, drive
from paceline.worker.participant import (
    Ending,
    evaluate,
    participant_steps,
    run_participant,
    state_hash,
    timed_steps,
)
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report
from paceline.worker.server.backup import BackupEnd, BackupServer
from paceline.worker.server.membership import (
    FINISHED,
    SHARD,
    CoordinatorView,
    FencedError,
    PrimaryRoute,
    ServerMembership,
    primary_of,
)
from paceline.worker.server.primary import PrimaryServer
from paceline.worker.server.replication import record_row
from paceline.worker.server.state_machine import ElasticServer
from paceline.worker.wiring import (
    WorkerProcess,
    build_served_worker,
    build_source,
    build_task,
    record_memory_reset,
    set_up_torch,
    strategy_class,
)

FIRST = "a"  # of the two servers, the one that begins as primary
RETRY_S = 0.01


def serve_elastic(participant: str, context: WorkerContext, report: Callable[[Report], None]) -> None:
    """One of the two parameter servers of an elastic run."""
    set_up_torch(context.plan)
    server = _Server(participant, context, report)
    run_participant(
        server.log,
        report,
        clock=0,
        fields={"node": context.node},
        train=server.live,
        conclude=server.conclude,
        leave=server.close,
    )


class _Task(Enum):
    """Task of a server without a role."""

    CLAIM = "claim"  # there is no primary
    DONE = "done"


class _Server:
    def __init__(self, participant: str, context: WorkerContext, report: Callable[[Report], None]) -> None:
        assert context.coordinator is not None, "an elastic run has a coordinator"
        plan = context.plan
        clock = context.clock
        endpoint = context.coordinator
        self._participant = participant
        self._context = context
        self._clock = clock
        self._report = report
        self._task: Task = build_task(plan)
        self._server = _build_server(plan, self._task)
        self._log: EventLog = open_log(plan, context.run_dir, participant, clock)
        self._dialer = open_dialer(context)
        self._host = ElasticHost(
            context.host,
            run=endpoint.run,
            name=participant,
            token=context.token,
            numel=self._server.numel,
            dtype=self._server.dtype,
            tls=peer_tls(context),
        )
        self._leave_reason = FAILED
        self._membership = ServerMembership(
            partial(coordinator_client, endpoint),
            run=endpoint.run,
            worker=participant,
            note=self._note,
            role="server",
            address=self._host.listener.address,
            facts={"host": context.node, **facts_of(self._host.listener.certificate)},
            is_alone=lambda: context.control.is_without_coordinator,
        )

    @property
    def log(self) -> EventLog:
        return self._log

    def close(self) -> None:
        self._host.close()
        self._membership.close(self._leave_reason)
        self._log.close()

    def live(self) -> bool:
        """Serve until all work is done; False if it was done before this server took part."""
        while True:
            task = self._membership.wait_for(
                self._find_task, "there is no primary", self._context.plan.timeout_s
            )
            if task is _Task.DONE:
                return False
            if isinstance(task, Member):
                if self._stand_by(task):
                    return True
                self._clock.sleep(RETRY_S)  # its death is not known yet
            elif self._claim():
                self._lead(0, 0)
                return True

    def conclude(self, took_part: bool) -> Ending:
        steps = self._server.version
        if not took_part:
            return Ending(steps=steps, reason=None, facts=lambda: {"steps": steps, "stopped": False})
        return Ending(steps=steps, reason="done", facts=self._facts)

    def _find_task(self, view: CoordinatorView) -> Member | _Task | None:
        if not view.taken_s:
            return None
        if view.is_done:
            return _Task.DONE
        if view.placed is None:
            return _Task.CLAIM if self._participant.endswith(FIRST) else None
        return primary_of(view) if view.place.primary else _Task.CLAIM

    def _claim(self) -> bool:
        """Be primary, with the newest checkpoint, or from the start; False: another was first."""
        epoch = self._membership.view.place.epoch
        folder = self._newest_checkpoint() or self._context.resume_from
        if folder is not None:
            self._server.restore(read_snapshot(folder, "server-0"))
        self._server.tickets = (epoch + 1) << 32  # no ticket of a former primary is ever used again
        try:
            self._membership.put(primary=self._participant, backup="", epoch=epoch)
        except RefusedError as error:
            self._note(f"{self._participant} is not primary: {error.what}")
            return False
        if folder is not None or epoch > 0:
            self._log.write("server_restored", part=SHARD, version=self._server.version, pid=os.getpid())
        self._log_event("server_started")
        return True

    def _newest_checkpoint(self) -> Path | None:
        agent = self._context.agent
        if agent is not None:
            name = agent.fetch_newest()
            return self._context.checkpoints / name if name else None
        newest = newest_complete(self._context.checkpoints, self._context.plan.num_workers)
        return None if newest is None else newest.folder

    def _stand_by(self, primary: Member) -> bool:
        """Follow the primary until all work is done; False if it never became this server's primary."""
        backup = BackupServer(
            name=self._participant,
            server=self._server,
            membership=self._membership,
            dialer=self._dialer,
        )
        ended = backup.follow(primary)
        if ended is BackupEnd.NEVER_BEGUN:
            return False
        if ended is BackupEnd.DONE:
            self._leave_reason = FINISHED
            return True
        self._await_promotion()
        self._log.write(
            "server_promoted",
            pid=os.getpid(),
            part=SHARD,
            epoch=self._membership.view.place.epoch,
            version=self._server.version,
            instead_of=primary.name,
        )
        for row in backup.rows():
            record_row(self._log, row)
        self._log.flush()
        self._note(f"{self._participant} is primary now, with version {self._server.version}")
        self._lead(backup.orders, backup.newest_ns)
        return True

    def _await_promotion(self) -> None:
        """Wait until the coordinator has decided: the primary is lost, or has dropped this backup."""
        broke_s = monotonic_s()

        def find(view: CoordinatorView) -> bool | None:
            place = view.place
            if place.primary == self._participant:
                return True
            is_left = place.backup != self._participant and view.taken_s > broke_s
            return False if is_left else None

        if not self._membership.wait_for(find, "there is no primary yet", self._context.plan.timeout_s):
            raise FencedError(
                f"{self._participant} is no longer the backup", "a new process takes the primary's state"
            )

    def _lead(self, orders: int, newest_ns: int) -> None:
        """Serve as primary until all work is done and saved."""
        assert self._context.coordinator is not None, "an elastic run has a coordinator"
        agent = self._context.agent
        saver = ServerSaver(
            self._context.plan,
            self._server,
            root=self._context.checkpoints,
            log=self._log,
            report=self._report,
            cataloguer=ServerCatalogue(self._membership, self._context.coordinator.run, self._participant),
            disk=self._context.disk(1),
        )
        primary = PrimaryServer(
            name=self._participant,
            server=self._server,
            host=self._host,
            membership=self._membership,
            log=self._log,
            saver=saver,
            clock=self._clock,
            validation=self._validation(),
            report=self._report,
            orders=orders,
            newest_ns=newest_ns,
            await_recorded=None if agent is None else agent.await_recorded,
        )
        primary.run()
        saver.save()
        primary.end()
        self._leave_reason = FINISHED

    def _validation(self) -> Validation | None:
        plan = self._context.plan
        if plan.evaluation is None:
            return None
        arena = self._server.replica.arena
        return Validation(self._task, arena, seed=plan.seed, collective=None, channel=Channel.STORE)

    def _note(self, text: str) -> None:
        self._report({"ev": "note", "text": text})

    def _log_event(self, kind: str) -> None:
        place = self._membership.view.place
        self._log.write(
            kind,
            pid=os.getpid(),
            part=SHARD,
            epoch=place.epoch,
            version=self._server.version,
            role="primary",
        )

    def _facts(self) -> Report:
        facts: Report = {
            "steps": self._server.version,
            "stopped": len(self._server.applied) < self._context.plan.total_gradients,
            "run_steps": len(self._server.applied) // self._context.plan.num_workers,
            "state_sha256": state_hash(self._server.replica.arena.named_state()),
        }
        if self._server.evaluations is not None:
            self._server.evaluations.conclude(facts)
        facts["metrics"] = evaluate(self._task, self._server.replica.arena.module, self._context.run_dir)
        return facts


def _build_server(plan: Plan, task: Task) -> ElasticServer:
    replica = Replica(plan, task, torch.device("cpu"), SystemClock())
    replica.prepare_optimizer()
    return ElasticServer(plan, replica, strategy_class(plan.mode))


class ServedWork(NamedTuple):
    """A worker behind elastic parameter servers."""

    source: Source
    steps: Steps[None]  # of its whole life


def work_with_servers(index: int, context: WorkerContext, report: Callable[[Report], None]) -> None:
    work = open_with_servers(index, context, report)
    drive(work.steps, work.source)


def open_with_servers(index: int, context: WorkerContext, report: Callable[[Report], None]) -> ServedWork:
    """Join the run."""
    assert context.coordinator is not None, "an elastic run has a coordinator"
    plan = context.plan
    endpoint = context.coordinator
    name = f"worker-{index}"
    set_up_torch(plan)
    clock = context.clock
    log = open_log(plan, context.run_dir, name, clock)
    control = WorkerControl(context.control, index, lambda text: report({"ev": "note", "text": text}))
    membership = ServerMembership(
        partial(coordinator_client, endpoint),
        run=endpoint.run,
        worker=name,
        note=control.note,
        facts={"host": context.node},
        is_alone=control.is_without_coordinator,
    )
    dialer = open_dialer(context)
    first = _first_step(context, control, Rank(index))
    route = PrimaryRoute(membership, plan.timeout_s)
    task = build_task(plan)
    source = build_source(plan, task, torch.device("cpu"), clock)
    process = WorkerProcess(plan=plan, rank=Rank(index), source=source, clock=clock, log=log, control=control)

    def loop() -> Steps[LoopResult]:
        worker = build_served_worker(process, route, dialer, task)
        if first and plan.compress is not None and plan.compress.has_state:
            why = f"{name} starts again after {first} steps, and its former process kept what it owed"
            record_memory_reset(log, control.note, why)
        worker.strategy.prepare(worker.replica, first)
        result = yield from worker.steps(first)
        worker.strategy.close()
        return result

    steps = participant_steps(
        log,
        report,
        clock=first,
        fields={"node": context.node},
        train=lambda: timed_steps(clock, loop()),
        release=lambda: membership.close("it has finished"),
        conclude=lambda result: Ending(
            steps=result.finished, reason="done", facts=lambda: {**result.facts, "stopped": False}
        ),
    )
    return ServedWork(source, steps)


def _first_step(context: WorkerContext, control: WorkerControl, rank: Rank) -> StepClock:
    """A replacement continues the count of the lost worker; a resumed run that of the checkpoint."""
    saved = 0
    if context.resume_from is not None:
        saved = int(read_snapshot(context.resume_from, "server-0").facts["clocks"][str(rank)])
    return StepClock(max(saved, control.finished))
