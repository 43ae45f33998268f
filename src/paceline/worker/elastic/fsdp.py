"""What does a worker of an elastic fsdp run do from birth to end? It joins, trains its part, and reports."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from paceline.checkpoints.catalog import folder_at, newest_complete, number_of, set_aside
from paceline.checkpoints.snapshot import Snapshot
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError, TrainingError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.plan.catalog import MODES
from paceline.strategies.elastic.torch_group import FsdpGeneration, GenerationMembers
from paceline.strategies.port import Outcome, Strategy
from paceline.tasks.port import Task
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.sharded_arena import forget_meshes
from paceline.transport.shm import BARRIER_SLOTS, Barrier
from paceline.transport.torch_dist import wait_for_all
from paceline.worker.checkpointing import NoSaver, WorkerSaver, writer_for
from paceline.worker.context import WorkerContext, open_log
from paceline.worker.control import WorkerControl
from paceline.worker.elastic.ddp import DdpElasticWorker
from paceline.worker.elastic.generations import ROOM_WORD, ElasticStrategy
from paceline.worker.elastic.participant import elastic_ending, open_membership, revoke
from paceline.worker.elastic.sharing import AgreedShares, NoListener
from paceline.worker.evaluation import Evaluations
from paceline.worker.gradient import GradientSource
from paceline.worker.loop import LoopResult, Worker
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

# With a worker its part of the model is lost, and nobody else has it. So a
# step is committed only once it is in a checkpoint whose parts are all on the
# disk; everybody who is left goes back to that one, which fits any number of
# workers, and the steps since then are made again. The processes stay.


class FsdpSaver(WorkerSaver):
    """Saves this worker's part, at the same steps whoever lives. Parts know their generation."""

    generation = 0
    company: GenerationMembers | None = None

    def begin_at(self, clock: StepClock) -> None:
        self._due = (clock // self._every + 1) * self._every if self._every else int(clock)

    def maybe_save(self, finished: StepClock, outcome: Outcome) -> None:
        super().maybe_save(finished, outcome)
        if self.company is not None and self.company.leaving and outcome.shares_done is not None:
            at = outcome.shares_done // self._num_workers
            self.save(finished, name=outcome.shares_done, at=at)
            self.close()
            wait_for_all()  # nobody leaves before every part is on the disk

    def _live(self, finished: int, at: int) -> Snapshot:
        live = super()._live(at, at)  # how many gradients this worker has made is its own affair
        return replace(live, facts={**live.facts, "generation": self.generation})


@dataclass(kw_only=True)
class FsdpElasticWorker(DdpElasticWorker):
    task: Task
    root: Path  # of the checkpoints
    saver_for: Callable[[ShardedReplica, Strategy, int, int], FsdpSaver]  # by our rank, of so many
    final: Report = field(default_factory=dict)  # what is said about the model at the end
    saver: FsdpSaver | None = None  # of the newest generation
    _why: str = ""
    _goes_on_from: int = -1  # the number of the checkpoint; -1: from the beginning

    def _heal(self, world: GenerationWorld, generation: pb.Generation) -> list[str]:
        """All agree on a checkpoint. What is newer never happened: a part of it was lost."""
        self._names = list(generation.workers)
        self.drain()
        self.saver = None
        forget_meshes()  # all but the last group are free now; of that one we still have the replica
        meeting = Barrier(
            world, world.rank, clock=SystemClock(), timeout_s=self.plan.timeout_s, first_place=BARRIER_SLOTS
        )
        meeting.meet()  # everybody's parts are on the disk
        if self.rank == 0:
            found = newest_complete(self.root, self.plan.num_workers)
            number = -1 if found is None else number_of(found.folder)
            set_aside(self.root, after=number)
            world.words[0, ROOM_WORD] = number
        meeting.meet()
        self._goes_on_from = int(world.words[0, ROOM_WORD])
        at = max(0, self._goes_on_from) // self.plan.num_workers
        if at < self.committed:
            raise TrainingError(
                f"the run was saved after step {self.committed}, and that checkpoint cannot be read any more",
                "bring it back from a copy and resume, or start a new run: this one does not begin anew",
            )
        self.committed, self._why = at, generation.reason
        return []  # nobody has anything that others lack

    def _train(self, world: GenerationWorld, sharing: AgreedShares) -> LoopResult:
        company = self._company()
        strategy = FsdpGeneration(self.plan, self._links(world), company)
        try:
            with self._group(world):
                replica = self._split()
                self.saver = self.saver_for(replica, strategy, self.rank, world.parties)
                self.saver.generation, self.saver.company = self.generation, company
                if self.evaluations is not None:
                    self.saver.also = self.evaluations.live
                self.saver.begin_at(StepClock(self.committed))
                strategy.prepare(replica, StepClock(self.committed))
                try:
                    ran = self.worker_for(strategy, world).run(StepClock(self.finished))
                    self._end(replica, strategy.committed)
                    return ran
                finally:
                    strategy.close()
        except PeerLostError:
            self.has_left = company.has_left
            raise
        finally:
            self.finished += strategy.gradients

    def _split(self) -> ShardedReplica:
        """The model over the workers of this generation, with what the checkpoint had."""
        self.replica = replica = ShardedReplica(self.plan, self.task, torch.device("cpu"), self.clock)
        replica.prepare_optimizer()
        # What was evaluated after that checkpoint never happened either.
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
        """What takes all parts is done before anybody goes."""
        self.drain()
        wait_for_all()  # the last checkpoint is whole: if somebody is lost from here on, it is gone on from
        self.final = {"state_sha256": state_hash(replica.whole_state())}
        self.steps_done = committed
        run_dir = self.root.parent if self.rank == 0 else None
        metrics = evaluate(self.task, replica.arena.module, run_dir)
        if self.rank == 0:
            self.final["metrics"] = metrics
        self.committed = committed

    def drain(self) -> None:
        """What this worker saved is on the disk, and told."""
        if self.saver is not None:
            self.saver.close()


ReportSink = Callable[[Report], None]


def work_fsdp(index: int, seat: WorkerContext, report: ReportSink) -> None:
    """A worker that trains in generations, each with the model split anew."""
    assert MODES[seat.plan.mode].is_split, "other modes have a participant of their own"
    set_up_torch(seat.plan)
    elastic = _build(index, seat, build_task(seat.plan), report)

    def release() -> None:
        elastic.drain()
        elastic.membership.close("it was asked to" if elastic.has_left else "it has finished")

    run_participant(
        elastic.log,
        report,
        clock=elastic.committed,
        about={"node": socket.gethostname()},
        train=lambda: timed(elastic.clock, elastic.run),
        release=release,
        conclude=lambda ran: _conclude(elastic, ran),
    )


def _conclude(elastic: FsdpElasticWorker, ran: TimedRun) -> Ending:
    facts: Report = {**ran.facts, **elastic.final, "run_steps": elastic.steps_done}
    if elastic.evaluations is not None:
        elastic.evaluations.conclude(facts)
    return elastic_ending(ran, facts, is_early=not elastic.final)  # then what it has is not the run's end


def _build(index: int, seat: WorkerContext, task: Task, report: ReportSink) -> FsdpElasticWorker:
    assert seat.coordinator is not None, "an elastic run has a coordinator"
    plan, clock, place, name = seat.plan, SystemClock(), seat.coordinator, f"worker-{index}"
    log = open_log(plan, seat.run_dir, name, clock)
    control = WorkerControl(seat.control, index, lambda text: report({"ev": "note", "text": text}))
    source = GradientSource(plan, task, torch.device("cpu"), clock, ahead=True)
    process = WorkerProcess(plan=plan, rank=Rank(index), source=source, clock=clock, log=log, control=control)
    membership = open_membership(place, name, control)

    def saver_for(replica: ShardedReplica, strategy: Strategy, rank: int, parts: int) -> FsdpSaver:
        writer = writer_for(plan, seat.checkpoints, f"worker-{rank}", participants=parts)
        return FsdpSaver(plan, replica, strategy, log=log, writer=writer, report=report)

    def worker_for(strategy: ElasticStrategy, world: GenerationWorld) -> Worker:
        record, replica = elastic.evaluations, elastic.replica
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
        folder=seat.run_dir / "generations",
        worker_for=worker_for,
        asked=control,
        voice=NoListener(),
        save=lambda _committed, _carried: None,
        revoke=partial(revoke, membership, place.run),
        finished=control.finished,  # a replacement goes on counting where the lost one stood
        task=task,
        root=seat.checkpoints,
        saver_for=saver_for,
    )
    return elastic
