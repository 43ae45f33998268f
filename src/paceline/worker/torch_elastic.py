"""How does a worker of an elastic ddp run go on when others die? With a new group, and the same replica.

The old group is dropped with everything that refers to it, which closes its
connections and so wakes whoever still waits in it. The state comes from the
memory of whoever has the newest, as in every elastic run (elastic.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from paceline.errors import PeerLostError
from paceline.ids import Clock as StepClock
from paceline.ids import Rank
from paceline.strategies.port import Links
from paceline.strategies.torch_generation import Company, DdpGeneration
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.torch_dist import abandon_group, is_lost_peer, join_group, leave_group
from paceline.worker.elastic import ElasticWorker
from paceline.worker.loop import Ran


@dataclass(kw_only=True)
class DdpElasticWorker(ElasticWorker):
    def _train(self, world: GenerationWorld, names: list[str]) -> Ran:
        company = self._company(names)
        strategy = DdpGeneration(self.plan, self._links(world), company)
        strategy.committed = self.committed
        try:
            with self._group(world):
                strategy.prepare(self.replica, StepClock(self.committed))
                try:
                    return self.worker_for(strategy, self.rank).run(StepClock(self.finished))
                finally:
                    strategy.close()
        except PeerLostError:
            self.has_left = company.has_left
            raise
        finally:
            self.committed, self.finished = strategy.committed, self.finished + strategy.gradients

    def _company(self, names: list[str]) -> Company:
        number = self.generation
        return Company(
            names,
            self.rank,
            wants_leave=self.asked.wants_leave,
            is_over=lambda: self.membership.is_over(number),
        )

    def _links(self, world: GenerationWorld) -> Links:
        return Links(rank=Rank(self.rank), world_size=world.parties, clock=self.clock)

    @contextmanager
    def _group(self, world: GenerationWorld) -> Iterator[None]:
        """torch's process group of this generation; PeerLostError when somebody in it is lost."""

        def over() -> None:
            world.wake_all()
            abandon_group()

        try:
            join_group(
                "gloo",
                store_path=str(self.folder / f"{self.generation}.store"),
                rank=Rank(self.rank),
                world_size=world.parties,
                timeout_s=self.plan.timeout_s,
            )
            self.membership.when_over(over)
            yield
        except RuntimeError as error:
            if not is_lost_peer(error):
                raise
            why = str(error).splitlines()[0]
        else:
            return
        finally:
            self.membership.when_over(lambda: None)
            leave_group()
        raise PeerLostError(f"torch's process group broke: {why}", "the run goes on in the next generation")
