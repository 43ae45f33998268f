"""What would this plan do, run in one process, in virtual time, in a fixed order?

The very same loop, strategies and server as in real runs; only the transport
and the clock are in-process ones. A step's compute takes the plan's pace times
its slowness, everything else takes no time, so schedules, waits and rates can
be predicted to the nanosecond. The laws run on this, and so do replays of
synchronous runs.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.events.log import MemoryLog
from paceline.events.read import History
from paceline.ids import Clock as StepClock
from paceline.ids import Rank
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Links, ServerSide, Strategy
from paceline.tasks.port import Task
from paceline.transport.in_process import InProcessCollective, InProcessStore, Meeting
from paceline.transport.ports import Answer, ParameterStore
from paceline.transport.turns import Turns
from paceline.worker.gradient import GradientSource
from paceline.worker.loop import Worker
from paceline.worker.replica import Replica
from paceline.worker.saving import NoSaver
from paceline.worker.server import ParameterServer
from paceline.worker.wiring import build_task, channel_of, set_up_torch, strategy_class

Wrap = Callable[[Rank, ParameterStore], ParameterStore]
AfterStep = Callable[[Rank, int, Replica], None]


@dataclass(slots=True)
class VirtualRun:
    """Everything that can be known about a virtual run."""

    history: History
    replicas: dict[int, Replica] = field(default_factory=dict)  # by rank
    server: Replica | None = None
    errors: list[BaseException | None] = field(default_factory=list)
    ended_s: dict[int, float] = field(default_factory=dict)  # by rank
    elapsed_s: float = 0.0

    def final_state(self) -> dict[str, Tensor]:
        """The trained model: the server's, or rank 0's."""
        return (self.server or self.replicas[0]).arena.named_state()


class _LeavesError(Exception):
    """Lets a virtual worker say goodbye before its work is done."""


class WorkerGoneError(Exception):
    """Ends a virtual worker without a word, as a crash or a cut network would."""


@dataclass(frozen=True, slots=True)
class _Control:
    rank: Rank
    replica: Replica
    silent_after: int | None
    leaves_after: int | None
    stops_after: int | None
    after_step: AfterStep | None
    finished: list[int]

    def wants_stop(self) -> bool:
        return self.stops_after is not None and self.finished[0] + 1 >= self.stops_after

    def finished_step(self, steps: int, loss: float) -> None:
        self.finished[0] = steps
        if self.after_step is not None:
            self.after_step(self.rank, steps, self.replica)
        if self.silent_after is not None and steps >= self.silent_after:
            raise WorkerGoneError
        if self.leaves_after is not None and steps >= self.leaves_after:
            raise _LeavesError


def run_virtual(
    plan: Plan,
    *,
    silent_after: Mapping[int, int] | None = None,
    leaves_after: Mapping[int, int] | None = None,
    stops_after: Mapping[int, int] | None = None,
    starts_at_s: Mapping[int, float] | None = None,
    wrap_store: Wrap | None = None,
    after_step: AfterStep | None = None,
) -> VirtualRun:
    """Run the plan. After so many of its steps, a worker vanishes, leaves, or asks all to stop."""
    set_up_torch(plan)
    kind = strategy_class(plan.mode)
    channel = channel_of(plan.mode)
    turns, log, task = Turns(), MemoryLog(), build_task(plan)
    run = VirtualRun(History(run=plan.run))
    server = _server(plan, task, kind, log, turns) if channel is Channel.STORE else None
    run.server = server.replica if server is not None else None
    meeting, answers = Meeting(plan.num_workers), dict[Rank, Answer]()

    def live(rank: Rank) -> None:
        turns.sleep((starts_at_s or {}).get(rank, 0.0))
        store: ParameterStore | None = None
        collective = None
        if server is not None:
            store = InProcessStore(server, rank, answers, turns=turns, timeout_s=plan.timeout_s)
            store = store if wrap_store is None else wrap_store(rank, store)
        else:
            collective = InProcessCollective(meeting, rank, turns=turns, timeout_s=plan.timeout_s)
        links = Links(rank=rank, world_size=plan.num_workers, collective=collective, store=store)
        replica = Replica(plan, task, torch.device("cpu"), turns)
        run.replicas[rank] = replica
        strategy: Strategy = kind(plan, links)
        strategy.prepare(replica, StepClock(0))
        worker = Worker(
            plan=plan,
            rank=rank,
            replica=replica,
            strategy=strategy,
            source=GradientSource(plan, task, torch.device("cpu"), turns),
            clock=turns,
            log=log.of(rank),
            control=_Control(
                rank,
                replica,
                (silent_after or {}).get(rank),
                (leaves_after or {}).get(rank),
                (stops_after or {}).get(rank),
                after_step,
                [0],
            ),
            saver=NoSaver(),
        )
        with suppress(_LeavesError):
            worker.run(StepClock(0))
        strategy.close()

    def live_and_note_the_end(rank: Rank) -> None:
        try:
            live(rank)
        finally:
            run.ended_s[rank] = turns.now_ns() / 1e9

    bodies = [partial(live_and_note_the_end, Rank(rank)) for rank in range(plan.num_workers)]
    run.errors = turns.run(bodies)
    run.elapsed_s = turns.now_ns() / 1e9
    run.history.steps, run.history.server = log.steps, log.server
    return run


def _server(plan: Plan, task: Task, kind: type[ServerSide], log: MemoryLog, clock: Clock) -> ParameterServer:
    replica = Replica(plan, task, torch.device("cpu"), clock)
    return ParameterServer(plan, replica, kind, log=log, clock=clock)
