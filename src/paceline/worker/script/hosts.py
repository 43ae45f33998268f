"""Hosts of scripts: a process that Python started, a worker or server of a run, a command's probe."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.config.environment import probe_machine
from paceline.config.train_config import TrainConfig
from paceline.core.clock import SystemClock
from paceline.core.errors import script_error
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import EventLog
from paceline.plan.catalog import SCRIPT_TASK, server_names
from paceline.plan.plan import Option, Plan
from paceline.plan.resolve import resolve
from paceline.strategies.port import Links
from paceline.tasks.script import ScriptParts, provide
from paceline.worker.checkpointing import NoSaver
from paceline.worker.context import WorkerContext
from paceline.worker.gradient import Source
from paceline.worker.loop import StepEnd, Steps
from paceline.worker.participant import build_fixed_worker, serve, work_steps
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report
from paceline.worker.script.data import ScriptSource
from paceline.worker.script.facts import ScriptFacts, ScriptFile
from paceline.worker.script.in_turn import strategy_of
from paceline.worker.script.port import OpenLoop, ScriptDoneError, open_loop_of
from paceline.worker.script.session import ScriptSession
from paceline.worker.wiring import (
    WorkerProcess,
    assemble_worker,
    build_task,
    device_of,
    strategy_class,
)

if TYPE_CHECKING:
    from paceline.worker.elastic.generations import ElasticWorker

SERVER = -1  # rank of a parameter server, in a script


def config_with_facts(
    config: TrainConfig, facts: ScriptFacts, file: ScriptFile, *, num_workers: int
) -> TrainConfig:
    """The settings of a run of this script."""
    sizes = facts.batch_sizes(num_workers)
    options: dict[str, Option] = facts.options(file)
    return dataclasses.replace(
        config,
        task=SCRIPT_TASK,
        task_options=options,
        steps=facts.total_steps(num_workers),
        batch_size=sizes,
        grad_accumulation=facts.accumulate if facts.num_samples else None,
    )


class _AloneControl:
    """A script without a launcher: only the script itself asks for a stop."""

    def __init__(self) -> None:
        self.is_stopping = False

    def wants_stop(self) -> bool:
        return self.is_stopping

    def finished_step(self, steps: int, loss: float) -> None: ...

    def note(self, text: str) -> None: ...


class AloneHost:
    """`python script.py`: one worker, mode single, no run folder."""

    rank = 0
    name = "the script"
    schedule = ""
    plan: Plan | None = None
    limits: ScriptFacts | None = None

    def __init__(self, file: ScriptFile, seed: int = 0) -> None:
        self.seed = seed
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._file = file
        self._control = _AloneControl()

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        plan = self._resolve(facts)
        clock = SystemClock()
        provide(parts)
        task = build_task(plan)
        device = next(parts.module.parameters()).device
        replica = Replica(plan, task, device, clock)
        replica.prepare_optimizer()
        links = Links(rank=Rank(0), world_size=1, clock=clock)
        strategy = strategy_of(plan, task, links, strategy_class(plan.mode))
        strategy.prepare(replica, StepClock(0))
        source = ScriptSource(plan, task.samples(), device)
        process = WorkerProcess(
            plan=plan,
            rank=Rank(0),
            source=source,
            clock=clock,
            log=EventLog(None, who="worker-0", clock=clock),
            control=self._control,
        )
        worker = assemble_worker(process, replica=replica, strategy=strategy, saver=NoSaver())
        return open_loop_of(plan, worker, worker.steps(StepClock(0)))

    def _resolve(self, facts: ScriptFacts) -> Plan:
        config = TrainConfig(mode="single", seed=self.seed, checkpoint_every=0, events="off")
        config = config_with_facts(config, facts, self._file, num_workers=1)
        return resolve(config, probe_machine(config))

    def run_dir(self) -> Path:
        return Path.cwd()

    def request_stop(self, reason: str) -> None:
        self._control.is_stopping = True


class ProbeHost(AloneHost):
    """One step alone, with the batch of one worker; then the script ends, and `facts` are known."""

    name = "the probe"

    def __init__(self, file: ScriptFile, seed: int, num_workers: int) -> None:
        super().__init__(file, seed)
        self.rank = SERVER  # of several processes that run the script, it is not the main one
        self.facts: ScriptFacts | None = None
        self.habits: dict[str, bool] = {}
        self.session: ScriptSession | None = None
        self.num_workers = num_workers

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        opened = super().open_loop(parts, facts)
        return opened._replace(steps=self._one_step(opened.steps))

    def _resolve(self, facts: ScriptFacts) -> Plan:
        facts.total_steps(self.num_workers)  # refused here, once
        plan = super()._resolve(facts)
        if not facts.num_samples:
            return plan  # run.share will tell the samples of a step
        sizes = facts.batch_sizes(self.num_workers)
        return dataclasses.replace(plan, batch_sizes=(max(sizes),))

    def _one_step(self, steps: Steps[object]) -> Steps[object]:
        event = next(steps)
        while not isinstance(event, StepEnd):
            event = steps.send((yield event))
        yield event
        assert self.session is not None, "the session has this host"
        self.facts = self.session.facts_so_far()
        self.habits = self.session.habits
        raise ScriptDoneError


class ParticipantHost:
    """A worker of a run."""

    def __init__(
        self, rank: Rank, context: WorkerContext, facts: ScriptFacts, report: Callable[[Report], None]
    ) -> None:
        self.plan: Plan | None = context.plan
        self._rank = int(rank)
        self.seed = context.plan.seed
        local_rank = rank if context.foreign is None else context.foreign.local_rank
        self.device = device_of(context.plan, Rank(local_rank))
        self.schedule = facts.schedule
        self.limits: ScriptFacts | None = facts
        self.name = f"worker-{rank}"
        self._context = context
        self._facts = facts
        self._report = report

    @property
    def rank(self) -> int:
        return self._rank

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        require_equal(self.name, facts, self._facts)
        provide(parts)
        return self._open()

    def _open(self) -> OpenLoop:
        context = self._context
        rank = Rank(self._rank)
        built = build_fixed_worker(rank, context, self._report)
        return open_loop_of(context.plan, built.worker, work_steps(built, rank, context, self._report))

    def run_dir(self) -> Path:
        return self._context.run_dir

    def request_stop(self, reason: str) -> None:
        self._context.control.ask_to_stop()


class ElasticHost(ParticipantHost):
    """A worker of an elastic run. Its rank is the one in its newest generation."""

    def __init__(
        self, rank: Rank, context: WorkerContext, facts: ScriptFacts, report: Callable[[Report], None]
    ) -> None:
        super().__init__(rank, context, facts, report)
        self._worker: ElasticWorker | None = None  # None: before the first batch, or behind servers

    @property
    def rank(self) -> int:
        has_entered = self._worker is not None and self._worker.generation > 0
        return self._worker.rank if self._worker is not None and has_entered else self._rank

    def _open(self) -> OpenLoop:
        context = self._context
        source: Source
        if server_names(context.plan):
            # Imported on demand: runs without a coordinator do not need it.
            from paceline.worker.server.participants import open_with_servers

            source, steps = open_with_servers(self._rank, context, self._report)
        else:
            from paceline.worker.elastic.participant import open_elastic

            self._worker, source, steps = open_elastic(self._rank, context, self._report)
        assert isinstance(source, ScriptSource), "the task is a script"
        return OpenLoop(context.plan, self._until_left(steps), source, context.clock)

    def _until_left(self, steps: Steps[None]) -> Steps[None]:
        yield from steps
        if self._worker is not None and (self._worker.has_left or self._worker.is_late):
            raise ScriptDoneError  # its model is not the one that the run ends with


class ServerHost(ParticipantHost):
    """A parameter server: it runs the script up to its first batch, for the model and the optimizer."""

    def __init__(
        self,
        participant: str,
        context: WorkerContext,
        facts: ScriptFacts,
        report: Callable[[Report], None],
    ) -> None:
        super().__init__(Rank(0), context, facts, report)
        self.name = participant

    @property
    def rank(self) -> int:
        return SERVER

    def _open(self) -> OpenLoop:
        if self._context.plan.elastic is None:
            serve(self._context, self._report)
        else:
            from paceline.worker.server.participants import serve_elastic

            serve_elastic(self.name, self._context, self._report)
        raise ScriptDoneError


def require_equal(name: str, own: ScriptFacts, planned: ScriptFacts) -> None:
    """What this worker prepared is what the plan was made for."""
    for field in ("model", "num_samples", "batch_size", "accumulate", "epochs", "steps", "optimizer"):
        if field == "batch_size" and not planned.num_samples:
            continue  # measured in the first step
        mine = getattr(own, field)
        theirs = getattr(planned, field)
        if mine != theirs:
            raise script_error(
                "E132",
                f"{name} prepared {field.replace('_', ' ')} {mine}, and the run was planned with {theirs}",
                "build the same on every worker: use run.seed, not run.rank, and seed every generator",
            )
