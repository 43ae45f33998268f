"""Participants of an elastic run with parameter servers: the two servers, and a worker.

Two servers hold the same parameters. Each process starts knowing nothing; what
it becomes is what the coordinator says: the first is primary, the other follows
it, takes over when it is lost, or starts again from the newest checkpoint if
both are.
"""

import os
import socket
from collections.abc import Callable
from enum import Enum
from functools import partial

import torch

from paceline.checkpoints.catalog import newest_complete
from paceline.checkpoints.snapshot import read_snapshot
from paceline.coordinator.client.aio import RefusedError
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import EventLog
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.tasks.port import Task
from paceline.transport.elastic_store import ElasticHost
from paceline.transport.elastic_wire import Primary
from paceline.worker.checkpointing import ServerSaver
from paceline.worker.context import WorkerContext, open_log
from paceline.worker.control import WorkerControl
from paceline.worker.elastic.catalogue import ServerCatalogue
from paceline.worker.elastic.participant import coordinator_client
from paceline.worker.evaluation import Validation
from paceline.worker.loop import LoopResult
from paceline.worker.participant import Ending, evaluate, run_participant, state_hash, timed
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
from paceline.worker.wiring import build_served_worker, build_task, set_up_torch, strategy_class

FIRST = "a"  # of the two servers, the one that begins as primary
RETRY_S = 0.01


def serve_elastic(who: str, seat: WorkerContext, report: Callable[[Report], None]) -> None:
    """One of the two parameter servers of an elastic run."""
    set_up_torch(seat.plan)
    server = _Server(who, seat, report)
    run_participant(
        server.log, report, clock=0, train=server.live, conclude=server.conclude, leave=server.close
    )


class _Task(Enum):
    """What a server that knows nothing yet is to do."""

    CLAIM = "claim"  # nobody is primary
    DONE = "done"


class _Server:
    def __init__(self, who: str, seat: WorkerContext, report: Callable[[Report], None]) -> None:
        assert seat.coordinator is not None, "an elastic run has a coordinator"
        plan, clock, place = seat.plan, SystemClock(), seat.coordinator
        self._who, self._seat, self._clock, self._report = who, seat, clock, report
        self._task: Task = build_task(plan)
        self._server = _build_server(plan, self._task)
        self._log: EventLog = open_log(plan, seat.run_dir, who, clock)
        self._host = ElasticHost(numel=self._server.numel, dtype=self._server.dtype, token=seat.token)
        self._goodbye = "it failed"
        self._membership = ServerMembership(
            partial(coordinator_client, place),
            run=place.run,
            worker=who,
            note=self._note,
            role="server",
            address=f"127.0.0.1:{self._host.port}",
            is_alone=lambda: seat.control.is_without_coordinator,
        )

    @property
    def log(self) -> EventLog:
        return self._log

    def close(self) -> None:
        self._host.close()
        self._membership.close(self._goodbye)
        self._log.close()

    def live(self) -> bool:
        """Until all work is done; False: it was done before this server had any part in it."""
        while True:
            task = self._membership.wait_for(self._find_task, "nobody is primary", self._seat.plan.timeout_s)
            if task is _Task.DONE:
                return False
            if isinstance(task, Primary):
                if self._stand_by(task):
                    return True
                self._clock.sleep(RETRY_S)  # its death is not known yet
            elif self._claim():
                self._lead(0)
                return True

    def conclude(self, took_part: bool) -> Ending:
        steps = self._server.version
        if not took_part:
            return Ending(steps=steps, reason=None, facts=lambda: {"steps": steps, "stopped": False})
        return Ending(steps=steps, reason="done", facts=self._facts)

    def _find_task(self, standing: CoordinatorView) -> Primary | _Task | None:
        if not standing.taken_s:
            return None
        if standing.is_done:
            return _Task.DONE
        if standing.placed is None:
            return _Task.CLAIM if self._who.endswith(FIRST) else None
        return primary_of(standing) if standing.place.primary else _Task.CLAIM

    def _claim(self) -> bool:
        """Be primary, with the newest checkpoint, or from the start; False: another was first."""
        epoch = self._membership.standing.place.epoch
        newest = newest_complete(self._seat.checkpoints, self._seat.plan.num_workers)
        folder = self._seat.resume_from if newest is None else newest.folder
        if folder is not None:
            self._server.restore(read_snapshot(folder, "server-0"))
        self._server.tickets = (epoch + 1) << 32  # no ticket of a former primary is ever used again
        try:
            self._membership.put(primary=self._who, backup="", epoch=epoch)
        except RefusedError as error:
            self._note(f"{self._who} is not primary: {error.what}")
            return False
        if folder is not None or epoch > 0:
            self._log.write("server_restored", part=SHARD, version=self._server.version, pid=os.getpid())
        self._say("server_started")
        return True

    def _stand_by(self, primary: Primary) -> bool:
        """Until all work is done; False: it never became our primary."""
        backup = BackupServer(
            name=self._who,
            server=self._server,
            membership=self._membership,
            token=self._seat.token,
        )
        ended = backup.follow(primary)
        if ended is BackupEnd.NEVER_BEGUN:
            return False
        if ended is BackupEnd.DONE:
            self._goodbye = FINISHED
            return True
        self._await_promotion()
        self._log.write(
            "server_promoted",
            pid=os.getpid(),
            part=SHARD,
            epoch=self._membership.standing.place.epoch,
            version=self._server.version,
            instead_of=primary.name,
        )
        for row in backup.rows():
            record_row(self._log, row)
        self._log.flush()
        self._note(f"{self._who} is primary now, with version {self._server.version}")
        self._lead(backup.orders)
        return True

    def _await_promotion(self) -> None:
        """The primary is gone, or has let us go: the coordinator knows which."""
        broke_s = monotonic_s()

        def find(standing: CoordinatorView) -> bool | None:
            place = standing.place
            if place.primary == self._who:
                return True
            is_left = place.backup != self._who and standing.taken_s > broke_s
            return False if is_left else None

        if not self._membership.wait_for(find, "who is primary is not decided", self._seat.plan.timeout_s):
            raise FencedError(
                f"{self._who} is not the backup any more", "a new process takes the primary's state"
            )

    def _lead(self, orders: int) -> None:
        """As primary, until all work is done and saved."""
        assert self._seat.coordinator is not None, "an elastic run has a coordinator"
        saver = ServerSaver(
            self._seat.plan,
            self._server,
            root=self._seat.checkpoints,
            log=self._log,
            report=self._report,
            cataloguer=ServerCatalogue(self._membership, self._seat.coordinator.run, self._who),
        )
        primary = PrimaryServer(
            name=self._who,
            server=self._server,
            host=self._host,
            membership=self._membership,
            log=self._log,
            saver=saver,
            clock=self._clock,
            validation=self._validation(),
            report=self._report,
            orders=orders,
        )
        primary.run()
        saver.save()
        primary.end()
        self._goodbye = FINISHED

    def _validation(self) -> Validation | None:
        plan = self._seat.plan
        if plan.evaluation is None:
            return None
        arena = self._server.replica.arena
        return Validation(self._task, arena, seed=plan.seed, collective=None, channel=Channel.STORE)

    def _note(self, text: str) -> None:
        self._report({"ev": "note", "text": text})

    def _say(self, kind: str) -> None:
        place = self._membership.standing.place
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
            "stopped": len(self._server.applied) < self._seat.plan.total_gradients,
            "run_steps": len(self._server.applied) // self._seat.plan.num_workers,
            "state_sha256": state_hash(self._server.replica.arena.named_state()),
        }
        if self._server.evaluations is not None:
            self._server.evaluations.conclude(facts)
        facts["metrics"] = evaluate(self._task, self._server.replica.arena.module, self._seat.run_dir)
        return facts


def _build_server(plan: Plan, task: Task) -> ElasticServer:
    replica = Replica(plan, task, torch.device("cpu"), SystemClock())
    replica.prepare_optimizer()
    return ElasticServer(plan, replica, strategy_class(plan.mode))


def work_with_servers(index: int, seat: WorkerContext, report: Callable[[Report], None]) -> None:
    """A worker behind elastic parameter servers."""
    assert seat.coordinator is not None, "an elastic run has a coordinator"
    plan, place, name = seat.plan, seat.coordinator, f"worker-{index}"
    set_up_torch(plan)
    log = open_log(plan, seat.run_dir, name, SystemClock())
    control = WorkerControl(seat.control, index, lambda text: report({"ev": "note", "text": text}))
    membership = ServerMembership(
        partial(coordinator_client, place),
        run=place.run,
        worker=name,
        note=control.note,
        is_alone=control.is_without_coordinator,
    )
    first = _first_step(seat, control, Rank(index))
    route = PrimaryRoute(membership, plan.timeout_s)

    def loop() -> LoopResult:
        worker = build_served_worker(seat, Rank(index), route, log=log, control=control)
        worker.strategy.prepare(worker.replica, first)
        ran = worker.run(first)
        worker.strategy.close()
        return ran

    run_participant(
        log,
        report,
        clock=first,
        about={"node": socket.gethostname()},
        train=lambda: timed(SystemClock(), loop),
        release=lambda: membership.close("it has finished"),
        conclude=lambda ran: Ending(
            steps=ran.finished, reason="done", facts=lambda: {**ran.facts, "stopped": False}
        ),
    )


def _first_step(seat: WorkerContext, control: WorkerControl, rank: Rank) -> StepClock:
    """A replacement goes on counting where the lost one stood; a resumed run where it was saved."""
    saved = 0
    if seat.resume_from is not None:
        saved = int(read_snapshot(seat.resume_from, "server-0").facts["clocks"][str(rank)])
    return StepClock(max(saved, control.finished))
