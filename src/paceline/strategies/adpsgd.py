"""AD-PSGD: after each gradient a worker averages with one random neighbour, without a barrier.

xᵢ, worker i's parameters and buffers, is in memory that neighbours can lock. A
step: copy xᵢ, compute a gradient on the copy, lock xᵢ and a neighbour's xⱼ,
replace both by their mean, update xᵢ with the own optimizer, unlock (Lian 2018,
arXiv 1710.06952). Two vectors are always locked in the order of ranks, so that no
deadlock can arise. The gradient may be stale: other workers may have averaged
with xᵢ since it was copied.

Work is assigned first come, first served, by a shared counter. A worker without
a further share waits for the others; then the exact mean of all becomes the
model of all. Unequal batches scale the gradient, so that each sample counts the same.
"""

from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.ids import Clock, Rank, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.sync.assignment import WorkUnit
from paceline.sync.averaging import mean_weight
from paceline.sync.topology import choose_partner, neighbours
from paceline.transport.ports import NO_TRAFFIC, LockedVectors, Traffic


class Adpsgd:
    channel: ClassVar[Channel] = Channel.PEERS

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.peers is not None, "adpsgd averages with its peers"
        self._plan = plan
        self._links = links
        self._peers = links.peers
        self._neighbours = neighbours(plan.strategy.topology, links.rank, links.world_size)
        self._weights = [mean_weight(rank, plan.batch_sizes) for rank in range(plan.num_workers)]
        self._position: int | None = None
        self._read_after = 0  # number of exchanges when this worker last copied its parameters
        self._is_over = False
        self._saved: dict[str, Tensor] = {}

    def prepare(self, replica: Replica, clock: Clock) -> None:
        layout = replica.arena.layout
        self._replica = replica
        self._arena = replica.arena
        self._numel = layout.numel
        self._parameters = slice(0, layout.buffers_start)
        self._buffers = slice(layout.buffers_start, layout.tail_start)
        # Integer buffers (as batch norm's counter) cannot be averaged; at the end all copy rank 0's.
        self._counters = [b for b in self._arena.module.buffers() if not b.is_floating_point()]
        extra = sum(counter.numel() for counter in self._counters)
        self._own = self._peers.open(
            layout.numel + extra,
            layout.dtype,
            shares=self._plan.total_gradients,
            done=int(self._saved.get("done", 0)),
        )
        self._own[: self._numel] = self._saved.get("own", self._arena.state)
        vectors, _ = self._peers.barrier()
        if not self._saved:  # rank 0's parameters for all, even if a task forgot to seed its model
            self._own[: self._numel] = vectors[0][: self._numel]
        self._peers.barrier()
        self._position = self._peers.take(wants_stop=False)

    def begin_step(self, step: Step) -> Begun | None:
        if self._position is None:
            if not self._is_over:
                self._average_all()
            return None
        with self._peers.hold([self._links.rank], is_exchange=False) as held:
            self._arena.state.copy_(self._own[: self._numel])
            self._read_after = held.number
        self._buffers_read = self._arena.state[self._buffers].clone()
        share = WorkUnit.at(self._position, self._links.world_size)
        self._weight = self._weights[share.rank]
        return Begun(share=share, traffic=Traffic(wait_ns=held.wait_ns))

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        if self._weight != 1.0:
            self._arena.gradient_part.mul_(self._weight)
        rank = self._links.rank
        other = choose_partner(self._neighbours, seed=self._plan.seed, rank=rank, step=step)
        ranks = [rank] if other is None else self.holding_order(rank, Rank(other))
        with self._peers.hold(ranks, is_exchange=True) as held:
            apply_ns = self._average_and_update(held)
        moved = 0 if other is None else self._arena.state.nbytes
        traffic = Traffic(moved, moved, held.wait_ns)
        self._position = self._peers.take(wants_stop=wants_stop)
        if self._position is None:
            traffic += self._average_all()
        return Outcome(
            traffic=traffic,
            apply_ns=apply_ns,
            version=self._read_after,
            synced=self._is_over,
            stop=self._is_over and self._peers.shares_taken() < self._plan.total_gradients,
            peer=other,
            exchange=held.number,
        )

    @staticmethod
    def holding_order(rank: Rank, other: Rank) -> list[Rank]:
        """Always the lower rank first: otherwise two workers could each hold what the other waits for."""
        return sorted((rank, other))

    def _average_all(self) -> Traffic:
        """Wait for all workers; the exact mean of all becomes the model of all."""
        self._is_over = True
        if self._links.world_size == 1:
            self._arena.state.copy_(self._own[: self._numel])
            return NO_TRAFFIC
        if self._counters:
            self._own[self._numel :] = torch.cat([counter.reshape(-1) for counter in self._counters])
        vectors, traffic = self._peers.barrier()
        total = vectors[0][: self._numel].clone()
        for vector in vectors[1:]:
            total.add_(vector[: self._numel])
        self._arena.state.copy_(total.div_(len(vectors)))
        values = torch.split(vectors[0][self._numel :], [c.numel() for c in self._counters])
        for counter, value in zip(self._counters, values, strict=True):
            counter.copy_(value.view_as(counter))
        return traffic

    def snapshot(self) -> dict[str, Tensor]:
        """This worker's parameters before the mean; the number of shares is final after the last barrier."""
        return {
            "own": self._own[: self._numel].clone(),
            "done": torch.tensor(self._peers.shares_taken()),
        }

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._peers.close()

    def _average_and_update(self, held: LockedVectors) -> int:
        """Replace both vectors by their mean, then update the own one; nanoseconds of the update."""
        own = self._own[: self._numel]
        state = self._arena.state
        # The forward pass's change of the buffers is added to the changes by other workers meanwhile.
        drift = own[self._buffers] - self._buffers_read
        own[self._buffers] = state[self._buffers].add_(drift)
        if len(held.vectors) == 2:
            first, second = (vector[: self._numel] for vector in held.vectors)
            first.add_(second).mul_(0.5)
            second.copy_(first)
        state.copy_(own)
        apply_ns = self._replica.update()
        own[self._parameters] = state[self._parameters]
        return apply_ns
