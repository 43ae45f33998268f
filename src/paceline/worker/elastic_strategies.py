"""Which strategy does a worker of an elastic run have in a generation? One over shards, by the mode."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from paceline.clock import Clock
from paceline.ids import Rank
from paceline.plan.plan import Plan
from paceline.plan.rounds import is_streaming
from paceline.strategies.port import Links, Strategy
from paceline.strategies.sharded import Sharded, Sharing
from paceline.strategies.sharded_adaptive import ShardedAdaptive
from paceline.strategies.sharded_fedavg import DONE, ShardedFedavg
from paceline.strategies.sharded_rounds import ShardedRounds
from paceline.strategies.sharded_streaming import ShardedStreaming
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.shm_rounds import ShmRounds
from paceline.transport.shm_shards import ShmShards
from paceline.worker.adapting import AdaptedShares
from paceline.worker.generation import ROOM_WORD


class ElasticStrategy(Strategy, Protocol):
    """What a strategy also has that may be interrupted for good at any moment."""

    @property
    def committed(self) -> int:
        """Steps of the run that everybody who goes on agrees on."""
        ...

    @property
    def steps_done(self) -> int:
        """The same in steps of the run, where commits are not steps."""
        ...

    @property
    def gradients(self) -> int:
        """That we have computed."""
        ...

    def undo(self) -> None:
        """The replica as it was at the last commit."""
        ...


def strategy_in(
    plan: Plan, world: GenerationWorld, rank: Rank, clock: Clock, sharing: Sharing
) -> ElasticStrategy:
    shards, timeout_s = plan.num_workers, plan.timeout_s
    if plan.mode == "ssgd":
        slots = ShmShards(world, rank, shards=shards, clock=clock, timeout_s=timeout_s)
        return Sharded(plan, Links(rank=rank, world_size=world.parties, clock=clock, shards=slots), sharing)
    rounds = ShmRounds(world, rank, shards=shards, clock=clock, timeout_s=timeout_s, word=ROOM_WORD)
    links = Links(rank=rank, world_size=world.parties, clock=clock, shards=rounds, rounds=rounds)
    if isinstance(sharing, AdaptedShares):
        return ShardedAdaptive(plan, links, sharing)
    return _kind(plan)(plan, links, sharing)


def _kind(plan: Plan) -> type[ShardedRounds]:
    if plan.mode == "fedavg":
        return ShardedFedavg
    return ShardedStreaming if is_streaming(plan) else ShardedRounds


def is_finished(plan: Plan, committed: int, carried: Mapping[str, Tensor]) -> bool:
    """Is all work of the run done by whoever has committed so much, and carries this along?"""
    if plan.mode == "fedavg":  # it counts rounds
        return DONE in carried and int(carried[DONE].sum()) == plan.total_gradients
    return committed >= plan.steps
