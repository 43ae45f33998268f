"""Elastic ddp worker: a new torch process group for each generation, with the same replica.

On one host the group is gloo's; on several it uses the authenticated connections of the generation
(transport/generation/mesh_group.py). When a generation is over, every wait in the old group ends. The state
then comes from the memory of a worker that has the newest one, as in every elastic run (generations.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.errors import PeerLostError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.strategies.elastic.torch_group import DdpGeneration, GenerationMembers
from paceline.strategies.port import Links
from paceline.transport.generation.ports import TrainingWorld
from paceline.transport.torch_dist import why_lost
from paceline.worker.elastic.generations import ElasticWorker
from paceline.worker.elastic.sharing import AgreedShares
from paceline.worker.elastic.worlds import TorchGroup, enter_group
from paceline.worker.loop import LoopResult, Steps


@dataclass(kw_only=True)
class DdpElasticWorker(ElasticWorker):
    folder: Path  # where the workers of a generation find torch's process group
    _names: list[str] = field(default_factory=list)  # indexed by rank, in the newest generation

    def _heal(self, world: TrainingWorld, generation: pb.Generation) -> list[str]:
        self._names = list(generation.workers)
        return super()._heal(world, generation)

    def _train(self, world: TrainingWorld, sharing: AgreedShares) -> Steps[LoopResult]:
        self._record_memory_reset("has a new process group")
        members = self._members()
        strategy = DdpGeneration(self.plan, self._links(world), members)
        strategy.committed = self.committed
        try:
            with self._group(world):
                strategy.prepare(self.replica, StepClock(self.committed))
                try:
                    return (yield from self.worker_for(strategy, world).steps(StepClock(self.finished)))
                finally:
                    strategy.close()
        except PeerLostError:
            self.has_left = members.has_left
            raise
        finally:
            self.committed = strategy.committed
            self.finished = self.finished + strategy.gradients
            self.steps_done = strategy.steps_done

    def _members(self) -> GenerationMembers:
        number = self.generation
        return GenerationMembers(
            self._names,
            self.rank,
            wants_leave=self.requests.wants_leave,
            is_over=lambda: self.membership.is_over(number),
        )

    def _links(self, world: TrainingWorld) -> Links:
        return Links(rank=Rank(self.rank), world_size=world.parties, clock=self.clock)

    @contextmanager
    def _group(self, world: TrainingWorld) -> Iterator[None]:
        """torch's process group of this generation; PeerLostError when a worker in it is lost."""
        number = self.generation
        group: TorchGroup | None = None
        try:
            group = enter_group(
                world,
                self.folder / f"{number}.store",
                timeout_s=self.plan.timeout_s,
                is_over=lambda: self.membership.is_over(number),
            )
            self.membership.when_over(partial(self._break, number, world, group))
            self._break(number, world, group)  # it may have ended before the callback was set
            yield
        except PeerLostError:
            if group is not None:
                group.cut()
            raise
        except RuntimeError as error:
            why = why_lost(error) if group is None else group.why_lost(error)
            if not why:
                raise
            if group is not None:
                group.cut()
            self._see_to_the_end(number, why)
            message = f"torch's process group broke: {why}"
            raise PeerLostError(message, "the run continues in the next generation") from error
        finally:
            self.membership.when_over(lambda: None)
            if group is not None:
                group.leave()

    def _break(self, number: int, world: TrainingWorld, group: TorchGroup) -> None:
        """Called whenever a generation ends, possibly one without this worker."""
        if self.membership.is_over(number):
            world.wake_all()
            group.cut()
