"""Gossip: at every step a worker mixes its parameters with its neighbours', without a global barrier.

xᵢ is worker i's parameters and buffers, gᵢ its gradient on xᵢ before
the step, W the weights of sync/topology.py. The optimizer and its state are local.

    dpsgd      xᵢ ← Σⱼ Wᵢⱼ xⱼ - η gᵢ(xᵢ)       mix, then update (Lian 2017, arXiv 1705.09056)
    diffusion  xᵢ ← Σⱼ Wᵢⱼ (xⱼ - η gⱼ(xⱼ))     update, then mix; on a complete graph this is ssgd
    push-sum   the same on directed edges, where W's columns sum to 1 and its rows do not:
               a weight wᵢ is mixed along, and the model is zᵢ = xᵢ / wᵢ (Assran 2019, arXiv 1811.10792)

Unequal batches scale the gradient, so that each sample counts the same in the
mean over workers. After the last step, one exact all-reduce gives all workers the
same model. A stop request travels from neighbour to neighbour as a countdown that
reaches 0 at the same step on all workers.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.ids import Clock, Rank, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import GossipVariant, Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.sync.averaging import mean_weight
from paceline.sync.topology import Mixing, metropolis_weights, push_weights, rounds_to_all
from paceline.transport.arena import STOP_FLAG, WEIGHT
from paceline.transport.ports import NO_TRAFFIC, Traffic


class Gossip:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "gossip reaches its neighbours by a collective"
        self._plan = plan
        self._links = links
        self._collective = links.collective
        options = plan.strategy
        self._pushes = options.gossip is GossipVariant.PUSH_SUM
        self._mixes_first = options.gossip is GossipVariant.DPSGD
        self._batch_weight = mean_weight(links.rank, plan.batch_sizes)
        self._rounds = max(1, rounds_to_all(options.topology, links.world_size))
        self._fixed = (
            None if self._pushes else metropolis_weights(options.topology, links.rank, links.world_size)
        )
        self._countdown: int | None = None  # steps until all stop; None: no stop requested
        self._before_the_end: Tensor | None = None
        self._saved: dict[str, Tensor] = {}

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        self._replica = replica
        self._arena = arena
        arena.place_state(self._collective.allocate(arena.layout.numel, arena.layout.dtype))
        self._mixed = torch.empty_like(arena.state)
        self._body = arena.state[: arena.layout.tail_start]
        self._tail = arena.state[arena.layout.tail_start :]
        self._tail[WEIGHT] = 1.0
        if clock == 0:
            self._collective.broadcast(arena.state)
        for name, part in {"own": arena.state, "weight": self._tail[WEIGHT]}.items():
            if name in self._saved:
                part.copy_(self._saved[name])

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        if self._batch_weight != 1.0:
            self._arena.gradient_part.mul_(self._batch_weight)
        self._from_model()
        apply_ns = 0 if self._mixes_first else self._replica.update()
        traffic, stop = self._mix(self.mixing(step), wants_stop=wants_stop)
        if self._mixes_first:
            apply_ns = self._replica.update()
        self._to_model()
        is_last = step + 1 == self._plan.steps
        stop = stop and not is_last
        ends = stop or is_last
        if stop:  # a resumed run continues from this state, as if the final mean had not been taken
            self._before_the_end = self._arena.state.clone()
        if ends:
            traffic += self._average_all()
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=ends, stop=stop, resumable=True)

    def mixing(self, step: Step) -> Mixing:
        """The sources and targets of this worker at this step, with their weights."""
        if self._fixed is not None:
            return self._fixed
        return push_weights(self._plan.strategy.topology, self._links.rank, self._links.world_size, step)

    def snapshot(self) -> dict[str, Tensor]:
        """Replicas differ, so each worker saves its own."""
        if self._before_the_end is not None:
            return {"own": self._before_the_end}
        return {"weight": self._tail[WEIGHT].clone()}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()

    def _mix(self, mixing: Mixing, *, wants_stop: bool) -> tuple[Traffic, bool]:
        """Replace the state by the weighted sum of the sources'; also whether all stop after this step."""
        self._tail[STOP_FLAG] = self.stop_countdown(wants_stop=wants_stop)
        sources, targets = ([Rank(r) for r in ranks] for ranks in (mixing.sources, mixing.targets))
        received, traffic = self._collective.gather(self._arena.state, sources, targets)
        torch.mul(received[0], mixing.weights[0][1], out=self._mixed)
        for vector, (_, weight) in zip(received[1:], mixing.weights[1:], strict=True):
            self._mixed.add_(vector, alpha=weight)
        self._arena.state.copy_(self._mixed)
        return traffic, self._is_time_to_stop(received)

    def stop_countdown(self, *, wants_stop: bool) -> int:
        """The number of mixing steps, this one included, until all stop; 0: no stop requested."""
        if self._countdown is not None:
            return self._countdown
        return self._rounds if wants_stop else 0

    def _is_time_to_stop(self, received: Sequence[Tensor]) -> bool:
        # The earliest request wins. Its countdown is long enough to reach all workers before it ends.
        flags = torch.stack([vector[self._arena.layout.tail_start + STOP_FLAG] for vector in received])
        self._tail[STOP_FLAG] = 0.0
        countdowns = [round(flag) for flag in flags.tolist() if flag > 0]
        self._countdown = min(countdowns) - 1 if countdowns else None
        return self._countdown == 0

    def _from_model(self) -> None:
        if (weight := self._weight()) != 1.0:
            self._body.mul_(weight)

    def _to_model(self) -> None:
        if (weight := self._weight()) != 1.0:
            self._body.div_(weight)

    def _weight(self) -> float:
        return float(self._tail[WEIGHT]) if self._pushes else 1.0

    def _average_all(self) -> Traffic:
        """Replace all models by the exact mean; the mean of push-sum's weights is 1."""
        if self._links.world_size == 1:
            return NO_TRAFFIC
        self._from_model()
        traffic = self._collective.all_reduce_mean(self._arena.state)
        self._to_model()
        self._tail[WEIGHT] = 1.0
        return traffic
