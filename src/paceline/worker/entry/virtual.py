"""Virtual run: all participants of a plan in one process, in virtual time and in a fixed order.

It is the same loop, strategies and server as in real runs; only the transport and the clock are in-process
ones. The compute phase of a step takes the plan's pace times its slowness, and everything else takes no
time, so schedules, waits and rates can be predicted to the nanosecond. The laws run on this, and so do
replays of synchronous runs.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import Log, MemoryLog
from paceline.events.read import History
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Strategy
from paceline.transport.ports import Collective, ParameterStore
from paceline.transport.virtual_time import Turns
from paceline.worker.checkpointing import NoSaver
from paceline.worker.evaluation import NO_EVALUATION, EvaluationHook
from paceline.worker.gradient import GradientSource, Source
from paceline.worker.loop import Control, LoopResult, Saver, Worker
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report
from paceline.worker.script.in_turn import StrategyFactory, strategy_of
from paceline.worker.server.core import ParameterServer
from paceline.worker.wiring import (
    WorkerProcess,
    assemble_worker,
    build_task,
    channel_of,
    evaluate_between_updates,
    evaluator_for,
    in_process_links,
    in_process_world,
    set_up_torch,
    strategy_class,
)

Wrap = Callable[[Rank, ParameterStore], ParameterStore]
WrapCollective = Callable[[Rank, Collective], Collective]
AfterStep = Callable[[Rank, int, Replica], None]


@dataclass(slots=True)
class VirtualRun:
    """Everything that can be known about a virtual run."""

    history: History
    replicas: dict[int, Replica] = field(default_factory=dict)  # by rank
    strategies: dict[int, Strategy] = field(default_factory=dict)  # by rank
    server: Replica | None = None
    errors: list[BaseException | None] = field(default_factory=list)
    ended_s: dict[int, float] = field(default_factory=dict)  # by rank
    elapsed_s: float = 0.0

    def final_state(self) -> dict[str, Tensor]:
        """The trained model: the server's, or rank 0's."""
        return (self.server or self.replicas[0]).arena.named_state()


class _LeavesError(Exception):
    """Raised to let a virtual worker leave normally before its work is done."""


class WorkerGoneError(Exception):
    """Ends a virtual worker without a message, as a crash or a network partition would."""


@dataclass(frozen=True, slots=True)
class Incidents:
    """Injected incidents, by rank."""

    silent_after: Mapping[int, int] = field(default_factory=dict)
    leaves_after: Mapping[int, int] = field(default_factory=dict)
    stops_after: Mapping[int, int] = field(default_factory=dict)
    starts_at_s: Mapping[int, float] = field(default_factory=dict)
    wrap_store: Wrap = lambda _, store: store
    after_step: AfterStep = lambda *_: None
    wrap_collective: WrapCollective = lambda _, collective: collective


class _Control:
    """The supervisor of one virtual worker: lets the incidents happen."""

    def __init__(self, rank: Rank, replica: Replica, incidents: Incidents) -> None:
        self._rank = rank
        self._replica = replica
        self._incidents = incidents
        self._finished = 0

    def wants_stop(self) -> bool:
        stops_after = self._incidents.stops_after.get(self._rank)
        return stops_after is not None and self._finished + 1 >= stops_after

    def note(self, text: str) -> None: ...

    def finished_step(self, steps: int, loss: float) -> None:
        self._finished = steps
        self._incidents.after_step(self._rank, steps, self._replica)
        if steps == self._incidents.silent_after.get(self._rank):
            raise WorkerGoneError
        if steps == self._incidents.leaves_after.get(self._rank):
            raise _LeavesError


def run_virtual(
    plan: Plan,
    *,
    silent_after: Mapping[int, int] | None = None,
    leaves_after: Mapping[int, int] | None = None,
    stops_after: Mapping[int, int] | None = None,
    starts_at_s: Mapping[int, float] | None = None,
    wrap_store: Wrap = lambda _, store: store,
    after_step: AfterStep = lambda *_: None,
    wrap_collective: WrapCollective = lambda _, collective: collective,
    kind: StrategyFactory | None = None,
) -> VirtualRun:
    """Run the plan. After a given number of its steps, a worker vanishes, leaves, or requests all to stop.

    `kind` replaces the plan's mode as the maker of strategies, in modes without a server.
    """
    incidents = Incidents(
        silent_after or {},
        leaves_after or {},
        stops_after or {},
        starts_at_s or {},
        wrap_store,
        after_step,
        wrap_collective,
    )
    return VirtualCluster(plan, incidents, kind=kind).run()


class VirtualCluster:
    """All participants of a run in one process; a subclass may give them other logs, savers and devices."""

    def __init__(
        self,
        plan: Plan,
        incidents: Incidents,
        *,
        turns: Turns | None = None,
        kind: StrategyFactory | None = None,
    ) -> None:
        set_up_torch(plan)
        self._plan = plan
        self._incidents = incidents
        self._device = torch.device(plan.device.value)
        self._kind: StrategyFactory = kind or strategy_class(plan.mode)
        self._turns = turns or Turns()
        self._task = build_task(plan)
        self._log = MemoryLog(self._turns)
        self._run = VirtualRun(History(run=plan.run))
        self._world = in_process_world(plan, self._turns, self._device)
        self._evaluators: dict[int, EvaluationHook] = {}  # by rank
        self._server: ParameterServer | None = None
        if channel_of(plan.mode) is Channel.STORE:
            server_side = strategy_class(plan.mode)
            log = self._server_log()
            replica = self._new_replica()
            replica.prepare_optimizer()
            self._server = ParameterServer(plan, replica, server_side, log=log, clock=self._turns)
            self._run.server = self._server.replica
            self._server.on_applied = evaluate_between_updates(
                self._server, self._task, plan, log=log, report=self._report
            )

    def run(self) -> VirtualRun:
        done = self._run
        ranks = [Rank(rank) for rank in range(self._plan.num_workers)]
        done.errors = self._turns.run([partial(self._live, rank) for rank in ranks])
        done.elapsed_s = self._turns.now_ns() / 1e9
        log = self._log
        history = done.history
        history.steps = log.steps
        history.abandoned = log.abandoned
        history.server = log.server
        history.plain = log.plain
        return done

    def _live(self, rank: Rank) -> None:
        """One worker from its start to its end."""
        try:
            self._turns.sleep(self._incidents.starts_at_s.get(rank, 0.0))
            worker = self._new_worker(rank)
            first = self._restored(worker)
            worker.strategy.prepare(worker.replica, first)
            with suppress(_LeavesError):
                self._ended(worker, worker.run(first))
            worker.strategy.close()
        finally:
            self._run.ended_s[rank] = self._turns.now_ns() / 1e9

    def _new_worker(self, rank: Rank) -> Worker:
        replica = self._run.replicas[rank] = self._new_replica()
        if self._server is None:
            replica.prepare_optimizer()
        links = in_process_links(
            self._world,
            self._plan,
            rank,
            self._server,
            wrap_collective=self._incidents.wrap_collective,
            wrap_store=self._incidents.wrap_store,
        )
        strategy = strategy_of(self._plan, self._task, links, self._kind)
        log = self._worker_log(rank)
        self._run.strategies[rank] = strategy
        channel = channel_of(self._plan.mode)
        self._evaluators[rank] = NO_EVALUATION
        if self._server is None:  # else the server evaluates
            self._evaluators[rank] = evaluator_for(
                self._plan, self._task, replica, links, channel, log=log, report=self._report
            )
        process = WorkerProcess(
            plan=self._plan,
            rank=rank,
            source=self._new_source(),
            clock=self._turns,
            log=log,
            control=self._new_control(rank, replica),
        )
        saver = self._new_saver(rank, replica, strategy, log)
        return assemble_worker(
            process,
            replica=replica,
            strategy=strategy,
            saver=saver,
            evaluator=self._evaluators[rank],
            collective=links.collective,
        )

    def _report(self, report: Report) -> None:
        """Reports of workers are dropped: there is no launcher."""

    def _restored(self, worker: Worker) -> StepClock:
        """How many steps are behind this worker when it begins."""
        return StepClock(0)

    def _ended(self, worker: Worker, result: LoopResult) -> None: ...

    def _new_source(self) -> Source:
        return GradientSource(self._plan, self._task, self._device, self._turns)

    def _new_control(self, rank: Rank, replica: Replica) -> Control:
        return _Control(rank, replica, self._incidents)

    def _new_saver(self, rank: Rank, replica: Replica, strategy: Strategy, log: Log) -> Saver:
        return NoSaver()

    def _server_log(self) -> Log:
        return self._log

    def _worker_log(self, rank: Rank) -> Log:
        return self._log.of(rank)

    def _new_replica(self) -> Replica:
        return Replica(self._plan, self._task, self._device, self._turns)
