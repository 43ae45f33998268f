"""How does `--launcher virtual` carry out a plan? All workers take turns in one process, in virtual time.

The very same loop, strategies, server, logs and checkpoints as with processes;
a step takes its pace times its slowness, and nothing else takes any time. So a
run of many slow workers is over as fast as one processor (or GPU) can compute
their gradients, and its schedule is the same every time.
"""

import os
from collections.abc import Callable

from paceline.checkpoints.store import read_snapshot
from paceline.clock import SystemClock
from paceline.events.log import EventLog, Log
from paceline.ids import Clock as StepClock
from paceline.ids import Rank
from paceline.plan.catalog import Channel
from paceline.strategies.port import Strategy
from paceline.transport.turns import Turns
from paceline.worker.control import WorkerControl
from paceline.worker.evaluating import Evaluator
from paceline.worker.gradient import GradientSource, Source
from paceline.worker.loop import Control, Ran, Saver, Worker
from paceline.worker.participant import Report, evaluate, facts_of_server, state_hash
from paceline.worker.replica import Replica
from paceline.worker.run_folder import open_log
from paceline.worker.saving import EndSaver, RowSaver, ServerSaver, WorkerSaver, restore_worker, writer_for
from paceline.worker.seat import Seat
from paceline.worker.stacked import StackedSource
from paceline.worker.virtual import Cluster, Incidents


def work_in_turns(seat: Seat, report: Callable[[Report], None]) -> None:
    """Run all participants of the plan to their end, and report for each."""
    participants = _Participants(seat, report)
    done = participants.run()
    for error in done.errors:
        if error is not None:
            raise error
    for facts in participants.reports():
        report(facts)


class _Participants(Cluster):
    def __init__(self, seat: Seat, report: Callable[[Report], None]) -> None:
        self._seat, self._tell = seat, report
        self._logs: list[EventLog] = []
        self._ran: dict[int, Ran] = {}
        # Begins where the launcher's clock stands, so that all times of the log have one origin.
        self._began_ns = SystemClock().now_ns()
        super().__init__(seat.plan, Incidents(), turns=Turns(self._began_ns))
        self._stacked: StackedSource | None = None
        if seat.plan.vmap:
            single = GradientSource(seat.plan, self._task, self._device, self._turns)
            self._stacked = StackedSource(single, self._task, self._turns)
        self._server_saver: ServerSaver | None = None
        if self._server is not None:
            if seat.resume_from is not None:
                self._server.restore(read_snapshot(seat.resume_from, "server-0"))
            log = self._logs[0]
            log.write("worker_started", pid=os.getpid(), clock=self._server.version)
            self._server_saver = ServerSaver(
                seat.plan, self._server, root=seat.checkpoints, log=log, report=report
            )
            evaluate, save = self._server.on_applied, self._server_saver.maybe_save

            def on_applied() -> None:
                evaluate()
                save()

            self._server.on_applied = on_applied

    def reports(self) -> list[Report]:
        """What each participant would have reported as a process of its own."""
        found = [self._of_worker(rank) for rank in sorted(self._ran)]
        if self._server is not None:
            found.append(self._of_server())
        for log in self._logs:
            log.close()
        return found

    def _of_worker(self, rank: int) -> Report:
        ran, replica = self._ran[rank], self._run.replicas[rank]
        steps_s = self._run.ended_s[rank] - self._began_ns / 1e9
        facts: Report = {"who": f"worker-{rank}", "steps": ran.finished, "stopped": ran.was_stopped}
        facts["steps_s"] = steps_s
        if self._server is None:
            facts["state_sha256"] = state_hash(replica.arena.named_state())
            self._evaluators[rank].conclude(facts)
            if rank == 0:
                facts["metrics"] = evaluate(self._task, replica.arena.module, self._seat.run_dir)
        return facts

    def _of_server(self) -> Report:
        assert self._server is not None, "asked only where there is a server"
        assert self._server_saver is not None, "a server has a saver"
        self._server_saver.save()
        self._logs[0].write("worker_finished", steps=self._server.version, reason="done")
        facts = facts_of_server(self._server, self._task, self._plan, self._seat.run_dir)
        return {"who": "server-0", **facts}

    def _restored(self, worker: Worker) -> StepClock:
        first, folder = StepClock(0), self._seat.resume_from
        if folder is not None and self._server is not None:
            first = StepClock(self._server.clocks[worker.rank])
        elif folder is not None:
            saved = read_snapshot(folder, f"worker-{worker.rank}")
            first = restore_worker(worker.replica, worker.strategy, saved)
            assert isinstance(worker.saver, WorkerSaver), "a worker without a server saves itself"
            worker.saver.begin_at(StepClock(saved.facts["at"]))
            if isinstance(worker.evaluator, Evaluator):
                worker.evaluator.record.restore(saved)
        worker.log.write("worker_started", pid=os.getpid(), clock=first)
        return first

    def _ended(self, worker: Worker, ran: Ran) -> None:
        if isinstance(worker.saver, EndSaver):
            worker.saver.save_at_end(ran.finished)
        if isinstance(worker.saver, WorkerSaver):
            worker.saver.close()
        self._ran[worker.rank] = ran
        reason = "stopped" if ran.was_stopped else "done"
        worker.log.write("worker_finished", steps=ran.finished, reason=reason)

    def _new_source(self) -> Source:
        return super()._new_source() if self._stacked is None else self._stacked.source()

    def _new_control(self, rank: Rank, replica: Replica) -> Control:
        return WorkerControl(
            self._seat.control, rank, lambda text: self._report({"ev": "note", "text": text})
        )

    def _report(self, report: Report) -> None:
        self._tell(report)

    def _new_saver(self, rank: Rank, replica: Replica, strategy: Strategy, log: Log) -> Saver:
        if self._server is not None:
            return RowSaver(self._plan, log)
        kind = EndSaver if strategy.channel is Channel.PEERS else WorkerSaver
        plan, root = self._plan, self._seat.checkpoints
        writer = writer_for(plan, root, f"worker-{rank}", participants=plan.num_workers)
        saver = kind(plan, replica, strategy, log=log, writer=writer, report=self._report)
        if isinstance(evaluator := self._evaluators[rank], Evaluator):
            saver.also = evaluator.record.live
        return saver

    def _server_log(self) -> Log:
        return self._opened("server-0")

    def _worker_log(self, rank: Rank) -> Log:
        return self._opened(f"worker-{rank}")

    def _opened(self, who: str) -> EventLog:
        log = open_log(self._plan, self._seat.run_dir, who, self._turns)
        self._logs.append(log)
        return log
