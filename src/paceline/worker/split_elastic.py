"""How does a worker of an elastic fsdp run go on when others die? From the newest checkpoint, split anew.

With a worker its part of the model is lost, and nobody else has it. So a
step is committed only once it is in a checkpoint whose parts are all on the
disk; everybody who is left goes back to that one, which fits any number of
workers, and the steps since then are made again. The processes stay.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from paceline.checkpoints.catalog import folder_at, newest_complete, number_of
from paceline.checkpoints.retention import set_aside
from paceline.checkpoints.store import Snapshot
from paceline.clock import SystemClock
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.errors import PeerLostError, TrainingError
from paceline.ids import Clock as StepClock
from paceline.strategies.port import Outcome, Strategy
from paceline.strategies.torch_generation import Company, FsdpGeneration
from paceline.tasks.port import Task
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.meeting import PLACES, Meeting
from paceline.transport.sharded_arena import forget_meshes
from paceline.transport.torch_dist import wait_for_all
from paceline.worker.evaluating import Evaluations
from paceline.worker.generation import ROOM_WORD
from paceline.worker.loop import Ran
from paceline.worker.participant import evaluate, state_hash
from paceline.worker.saving import WorkerSaver
from paceline.worker.sharded_replica import ShardedReplica
from paceline.worker.sharing import AgreedShares
from paceline.worker.telling import Report
from paceline.worker.torch_elastic import DdpElasticWorker


class SplitSaver(WorkerSaver):
    """Saves this worker's part, at the same steps whoever lives. Parts know their generation."""

    generation = 0
    company: Company | None = None

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
class SplitElasticWorker(DdpElasticWorker):
    task: Task
    root: Path  # of the checkpoints
    saver_for: Callable[[ShardedReplica, Strategy, int, int], SplitSaver]  # by our rank, of so many
    final: Report = field(default_factory=dict)  # what is said about the model at the end
    saver: SplitSaver | None = None  # of the newest generation
    _why: str = ""
    _goes_on_from: int = -1  # the number of the checkpoint; -1: from the beginning

    def _heal(self, world: GenerationWorld, generation: pb.Generation) -> list[str]:
        """All agree on a checkpoint. What is newer never happened: a part of it was lost."""
        self._names = list(generation.workers)
        self.drain()
        self.saver = None
        forget_meshes()  # all but the last group are free now; of that one we still have the replica
        meeting = Meeting(
            world, world.rank, clock=SystemClock(), timeout_s=self.plan.timeout_s, first_place=PLACES
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

    def _train(self, world: GenerationWorld, sharing: AgreedShares) -> Ran:
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
