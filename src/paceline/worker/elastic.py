"""How does a worker go on when others die or come? Generation after generation, with the same replica.

A generation is entered together, everybody is brought to the newest committed
step, and then the one training loop runs. When the generation ends, because
somebody was lost or came, what was not committed is undone, and the next
generation is entered. The process stays; nothing is read from disk.
"""

import gc
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.clock import Clock
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.errors import PeerLostError, TrainingError
from paceline.events.log import Log
from paceline.ids import Clock as StepClock
from paceline.ids import Rank
from paceline.plan.plan import Plan
from paceline.strategies.port import Links
from paceline.strategies.sharded import Sharded
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.shm_shards import ShmShards
from paceline.worker.generation import Healed, enter, make_equal
from paceline.worker.loop import Ran, Worker
from paceline.worker.membership import Membership
from paceline.worker.replica import Replica


@dataclass(slots=True, kw_only=True)
class ElasticWorker:
    plan: Plan
    name: str
    replica: Replica
    clock: Clock
    log: Log
    membership: Membership
    folder: Path  # where the workers of a generation find each other
    worker_for: Callable[[Sharded, int], Worker]  # in a generation, by our rank in it
    committed: int = 0  # steps of the run that our replica has
    finished: int = 0  # gradients that this process has computed
    rank: int = 0  # in the newest generation
    was_saved_at: int = 0  # the newest checkpoint's step, if there are some and none can be read
    _after: int = 0  # the last generation that we were in

    @property
    def generation(self) -> int:
        """The one that we are in, or were last."""
        return self._after

    def run(self) -> Ran:
        while True:
            generation = self.membership.wait_for_generation(self._after, self.plan.timeout_s)
            if generation is None:
                return Ran(StepClock(self.finished), was_stopped=self.committed < self.plan.steps)
            self._after = generation.number
            try:
                return self._take_part(generation)
            except PeerLostError as error:
                why = error.what
            self._write("generation_lost", number=generation.number, committed=self.committed, why=why)
            gc.collect()  # the old world stays mapped as long as anything refers to it

    def _take_part(self, generation: pb.Generation) -> Ran:
        """Until all is done; PeerLostError: the generation is over, and our replica is at a whole step."""
        number, parties = generation.number, len(generation.workers)
        self.rank = list(generation.workers).index(self.name)
        world = enter(self.folder, number, self.rank, parties, lambda: self.membership.is_over(number))
        self.membership.when_over(world.wake_all)
        try:
            self._heal(world, generation)
            return self._train(world, parties)
        finally:
            self.membership.when_over(lambda: None)
            world.close()

    def _heal(self, world: GenerationWorld, generation: pb.Generation) -> None:
        snapshot, restore = self.replica.snapshot, self.replica.restore
        healed = make_equal(world, self.committed, snapshot, restore, self.plan.timeout_s)
        self.committed = healed.committed
        if self.was_saved_at and self.committed == 0:
            raise TrainingError(
                f"the run was saved after step {self.was_saved_at}, and no checkpoint of it can be read",
                "bring them back from a copy and resume, or start a new run: this one does not begin anew",
            )
        self._write(
            "generation_entered",
            number=generation.number,
            rank=self.rank,
            workers=",".join(generation.workers),
            committed=healed.committed,
            healed_from=_source(healed, generation),
            healed_bytes=healed.nbytes,
            state=f"{self._fingerprint():08x}",
            why=generation.reason,
        )

    def _train(self, world: GenerationWorld, parties: int) -> Ran:
        plan, rank = self.plan, Rank(self.rank)
        shards = ShmShards(world, rank, shards=plan.num_workers, clock=self.clock, timeout_s=plan.timeout_s)
        strategy = Sharded(plan, Links(rank=rank, world_size=parties, clock=self.clock, shards=shards))
        strategy.prepare(self.replica, StepClock(self.committed))
        try:
            return self.worker_for(strategy, self.rank).run(StepClock(self.finished))
        except PeerLostError:
            strategy.undo()
            raise
        finally:
            self.committed, self.finished = strategy.committed, self.finished + strategy.gradients
            strategy.close()

    def _fingerprint(self) -> int:
        """Of all parameters and buffers: all who enter a generation must say the same."""
        arena = self.replica.arena
        return zlib.crc32(arena.state[: arena.layout.tail_start].numpy().tobytes())

    def _write(self, kind: str, **fields: str | int | None) -> None:
        self.log.write(kind, **fields)
        self.log.flush()


def _source(healed: Healed, generation: pb.Generation) -> str | None:
    return None if healed.source is None else generation.workers[healed.source]
