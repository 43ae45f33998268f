"""Elastic fsdp worker: the model is split again over the workers of each generation.

The part of the model that a lost worker held exists nowhere else. So a step is committed only once it is in
a checkpoint whose parts are all on the disk. The remaining workers return to that checkpoint, which can be
split over any number of workers, and repeat the steps since then. Their processes stay.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from paceline.checkpoints.catalog import folder_at
from paceline.checkpoints.snapshot import Snapshot
from paceline.checkpoints.writer import Disk
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.errors import PeerLostError, TrainingError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.plan.catalog import MODES
from paceline.strategies.elastic.torch_group import FsdpGeneration, GenerationMembers
from paceline.strategies.port import Outcome, Strategy
from paceline.tasks.port import Task
from paceline.transport.generation.ports import TrainingWorld
from paceline.transport.sharded_arena import forget_meshes
from paceline.transport.torch_dist import wait_for_all
from paceline.worker.checkpointing import NoSaver, WorkerSaver, writer_for
from paceline.worker.context import WorkerContext, open_log
from paceline.worker.control import WorkerControl
from paceline.worker.elastic.ddp import DdpElasticWorker
from paceline.worker.elastic.generations import ElasticStrategy
from paceline.worker.elastic.participant import ReportSink, elastic_ending, open_membership, revoke
from paceline.worker.elastic.sharing import AgreedShares, NoListener
from paceline.worker.evaluation import Evaluations
from paceline.worker.gradient import GradientSource, Source
from paceline.worker.loop import LoopResult, Steps, Worker
from paceline.worker.participant import Ending, TimedRun, evaluate, run_participant, state_hash, timed
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report
from paceline.worker.sharded_replica import ShardedReplica
from paceline.worker.wiring import (
    WorkerProcess,
    assemble_worker,
    build_task,
    generation_evaluator,
    set_up_torch,
)


class FsdpSaver(WorkerSaver):
    """Saves this worker's part, at steps that do not depend on the workers. A part names its generation."""

    generation = 0
    members: GenerationMembers | None = None

    def begin_at(self, clock: StepClock) -> None:
        self._due = (clock // self._every + 1) * self._every if self._every else int(clock)

    def maybe_save(self, finished: StepClock, outcome: Outcome) -> None:
        super().maybe_save(finished, outcome)
        if self.members is not None and self.members.leaving and outcome.shares_done is not None:
            at = outcome.shares_done // self._num_workers
            self.save(finished, name=outcome.shares_done, at=at)
            self.close()
            wait_for_all()  # no worker leaves before every part is on the disk

    def _live(self, finished: int, at: int) -> Snapshot:
        live = super()._live(
            at, at
        )  # `finished` is not stored: a worker's gradient count is not part of the state
        return replace(live, facts={**live.facts, "generation": self.generation})


@dataclass(kw_only=True)
class FsdpElasticWorker(DdpElasticWorker):
    task: Task
    source: Source
    root: Path  # of the checkpoints
    disk: Disk  # where they are
    saver_for: Callable[[ShardedReplica, Strategy, int, int], FsdpSaver]  # by rank and number of ranks
    final: Report = field(default_factory=dict)  # the report about the final model
    saver: FsdpSaver | None = None  # of the newest generation
    _why: str = ""
    _goes_on_from: int = -1  # the number of the checkpoint; -1: from the beginning

    def _heal(self, world: TrainingWorld, generation: pb.Generation) -> list[str]:
        """Agree on a checkpoint. Newer ones are set aside: a part of them was lost."""
        self._names = list(generation.workers)
        self.drain()
        self.saver = None
        forget_meshes()  # all but the last group are free now; of that one we still have the replica
        world.exchange(())  # the parts of all workers are on the disk
        number = -1
        if self.rank == 0:
            number = self.disk.return_to_newest(self.root, self.plan.num_workers)
        self._goes_on_from = world.exchange((number,))[0][0]
        if self._goes_on_from >= 0:
            self.disk.fetch(folder_at(self.root, self._goes_on_from))
        at = max(0, self._goes_on_from) // self.plan.num_workers
        if at < self.committed:
            raise TrainingError(
                f"the run was saved after step {self.committed}, but that checkpoint is no longer readable",
                "restore it from a backup and resume, or start a new run; this one cannot start over",
            )
        self.committed = at
        self._why = generation.reason
        return []  # no worker has state that others lack

    def _train(self, world: TrainingWorld, sharing: AgreedShares) -> Steps[LoopResult]:
        members = self._members()
        strategy = FsdpGeneration(self.plan, self._links(world), members)
        try:
            with self._group(world):
                replica = self._split()
                self.saver = self.saver_for(replica, strategy, self.rank, world.parties)
                self.saver.generation = self.generation
                self.saver.members = members
                if self.evaluations is not None:
                    self.saver.also = self.evaluations.live
                self.saver.begin_at(StepClock(self.committed))
                strategy.prepare(replica, StepClock(self.committed))
                try:
                    result = yield from self.worker_for(strategy, world).steps(StepClock(self.finished))
                    self._end(replica, strategy.committed)
                    return result
                finally:
                    strategy.close()
        except PeerLostError:
            self.has_left = members.has_left
            raise
        finally:
            self.finished += strategy.gradients

    def _split(self) -> ShardedReplica:
        """The model over the workers of this generation, with what the checkpoint had."""
        self.replica = replica = ShardedReplica(self.plan, self.task, torch.device("cpu"), self.clock)
        replica.prepare_optimizer()
        # Evaluations after that checkpoint are dropped too.
        self.evaluations = None
        if self.plan.evaluation is not None:
            self.evaluations = Evaluations(self.plan, replica.arena, self.clock)
        if self._goes_on_from >= 0:
            saved = replica.restore_from(folder_at(self.root, self._goes_on_from), self.rank)
            if self.evaluations is not None:
                self.evaluations.restore(saved)
        self._write(
            "generation_entered",
            number=self.generation,
            rank=self.rank,
            workers=",".join(self._names),
            committed=self.committed,
            healed_from=None,
            healed_bytes=0,
            state=state_hash(replica.whole_state())[:8],
            why=self._why,
        )
        return replica

    def _end(self, replica: ShardedReplica, committed: int) -> None:
        """Do what takes all parts before any worker leaves."""
        self.drain()
        wait_for_all()  # the last checkpoint is complete: if a worker is lost later, the run resumes from it
        self.final = {"state_sha256": state_hash(replica.whole_state())}
        self.steps_done = committed
        run_dir = self.root.parent if self.rank == 0 else None
        metrics = evaluate(self.task, replica.arena.module, run_dir)
        if self.rank == 0:
            self.final["metrics"] = metrics
        self.committed = committed

    def drain(self) -> None:
        """Return once everything this worker saved is on disk and reported."""
        if self.saver is not None:
            self.saver.close()


def work_fsdp(index: int, context: WorkerContext, report: ReportSink) -> None:
    """A worker that trains in generations, each with the model split again."""
    assert MODES[context.plan.mode].is_split, "other modes have a participant of their own"
    set_up_torch(context.plan)
    elastic = _build(index, context, build_task(context.plan), report)

    def release() -> None:
        elastic.drain()
        elastic.membership.close("it was asked to" if elastic.has_left else "it has finished")

    run_participant(
        elastic.log,
        report,
        clock=elastic.committed,
        fields={"node": context.node},
        train=lambda: timed(elastic.clock, lambda: elastic.run(elastic.source)),
        release=release,
        conclude=lambda result: _conclude(elastic, result),
    )


def _conclude(elastic: FsdpElasticWorker, result: TimedRun) -> Ending:
    facts: Report = {**result.facts, **elastic.final, "run_steps": elastic.steps_done}
    if elastic.evaluations is not None:
        elastic.evaluations.conclude(facts)
    return elastic_ending(result, facts, is_early=not elastic.final)  # then what it has is not the run's end


def _build(index: int, context: WorkerContext, task: Task, report: ReportSink) -> FsdpElasticWorker:
    assert context.coordinator is not None, "an elastic run has a coordinator"
    plan = context.plan
    clock = context.clock
    endpoint = context.coordinator
    name = f"worker-{index}"
    log = open_log(plan, context.run_dir, name, clock)
    control = WorkerControl(context.control, index, lambda text: report({"ev": "note", "text": text}))
    source = GradientSource(plan, task, torch.device("cpu"), clock, ahead=True)
    process = WorkerProcess(plan=plan, rank=Rank(index), source=source, clock=clock, log=log, control=control)
    membership, enter = open_membership(context, name, control)

    def saver_for(replica: ShardedReplica, strategy: Strategy, rank: int, parts: int) -> FsdpSaver:
        disk = context.disk(parts)
        writer = writer_for(plan, context.checkpoints, f"worker-{rank}", participants=parts, disk=disk)
        return FsdpSaver(plan, replica, strategy, log=log, writer=writer, report=report)

    def worker_for(strategy: ElasticStrategy, world: TrainingWorld) -> Worker:
        record = elastic.evaluations
        replica = elastic.replica
        evaluator = generation_evaluator(
            process, task, record, world, replica, steps_done=lambda: strategy.steps_done, report=report
        )
        saver = elastic.saver or NoSaver()
        return assemble_worker(process, replica=replica, strategy=strategy, saver=saver, evaluator=evaluator)

    elastic = FsdpElasticWorker(
        plan=plan,
        name=name,
        replica=Replica(plan, task, torch.device("cpu"), clock),  # until it is split over a generation
        clock=clock,
        log=log,
        membership=membership,
        enter=enter,
        folder=context.run_dir / "generations",
        worker_for=worker_for,
        requests=control,
        listener=NoListener(),
        save=lambda _committed, _carried: None,
        revoke=partial(revoke, membership, endpoint.run),
        finished=control.finished,  # a replacement continues the count of the lost worker
        task=task,
        source=source,
        root=context.checkpoints,
        disk=context.disk(plan.num_workers),
        saver_for=saver_for,
    )
    return elastic
