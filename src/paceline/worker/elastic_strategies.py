"""Which strategy does a worker of an elastic run have in a generation? One over shards, by the mode."""

from typing import Protocol

from paceline.clock import Clock
from paceline.ids import Rank
from paceline.plan.plan import Plan
from paceline.plan.rounds import has_rounds
from paceline.strategies.port import Links, Strategy
from paceline.strategies.sharded import Sharded, Sharing
from paceline.strategies.sharded_rounds import ShardedRounds
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.shm_rounds import ShmRounds
from paceline.transport.shm_shards import ShmShards
from paceline.worker.generation import ROOM_WORD


class ElasticStrategy(Strategy, Protocol):
    """What a strategy also has that may be interrupted for good at any moment."""

    committed: int  # steps of the run that everybody who goes on agrees on
    gradients: int  # that we have computed

    def undo(self) -> None:
        """The replica as it was at the last commit."""
        ...


def strategy_in(
    plan: Plan, world: GenerationWorld, rank: Rank, clock: Clock, sharing: Sharing
) -> ElasticStrategy:
    shards, timeout_s = plan.num_workers, plan.timeout_s
    if has_rounds(plan):
        rounds = ShmRounds(world, rank, shards=shards, clock=clock, timeout_s=timeout_s, word=ROOM_WORD)
        links = Links(rank=rank, world_size=world.parties, clock=clock, rounds=rounds)
        return ShardedRounds(plan, links, sharing)
    slots = ShmShards(world, rank, shards=shards, clock=clock, timeout_s=timeout_s)
    links = Links(rank=rank, world_size=world.parties, clock=clock, shards=slots)
    return Sharded(plan, links, sharing)
