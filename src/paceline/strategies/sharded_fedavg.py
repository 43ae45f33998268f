"""Federated averaging over logical shards: clients are shards, and whoever is there trains those drawn.

A round is what is committed: the drawn shards start from the common parameters with a fresh optimizer, make
their steps, and are averaged by the samples that they used, in the order of shards; those that were not
drawn count nothing, and keep what they have. Who is drawn follows from the seed and the number of the
round, so the bits are those of plain fedavg with a worker for each shard. `committed` counts rounds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.ids import Clock
from paceline.plan.plan import Plan
from paceline.plan.rounds import draws_of
from paceline.strategies.port import Links, Outcome, Replica
from paceline.strategies.sharded import Sharing
from paceline.strategies.sharded_rounds import ShardedRounds
from paceline.sync.assignment import Share

DONE = "done"  # steps of each shard


class ShardedFedavg(ShardedRounds):
    def __init__(self, plan: Plan, links: Links, sharing: Sharing | None = None) -> None:
        super().__init__(plan, links, sharing)
        self._draw = draws_of(plan)
        self._rank, self._workers = links.rank, links.world_size

    def prepare(self, replica: Replica, clock: Clock) -> None:
        """`clock` rounds of the run are committed."""
        if self._saved:
            self._draw.number = int(clock)
            self._draw.done = [int(steps) for steps in self._saved.pop(DONE)]
        super().prepare(replica, clock)
        self._drawn = self._draw.current()
        self._mine = self._next_mine()

    @property
    def steps_done(self) -> int:
        return sum(self._draw.done) // len(self._draw.done)

    def snapshot(self) -> dict[str, Tensor]:
        return {**super().snapshot(), DONE: torch.tensor(self._draw.done)}

    def restore(self, saved: dict[str, Tensor]) -> None:
        super().restore(dict(saved))

    def _commit(self, apply_ns: int) -> Outcome:
        self._show_those_who_wait()
        outcome = super()._commit(apply_ns)
        if outcome.stop or outcome.is_last:
            self.settle()  # the shards that we trained last may have counted further than others
        return outcome

    def _show_those_who_wait(self) -> None:
        """Everybody says for some of them that they add nothing, and still have what they had."""
        for shard in range(self._rank, len(self._slots), self._workers):
            if shard not in self._drawn:
                self._slots[shard].zero_()
                self._shown[shard] = self.kept_by(shard)

    def _next_end(self) -> int:
        return self.committed + 1

    def _is_all_done(self) -> bool:
        return not self._drawn

    def _next_mine(self) -> Sequence[int]:
        if self._draw.number < self.committed:
            self._draw.finish()
            self._drawn = self._draw.current()
        clients = sorted(self._drawn)
        return [clients[place] for place in self._sharing.mine() if place < len(clients)]

    def _take_up(self, shard: int) -> None:
        self._live = None  # another round may have been made since
        super()._take_up(shard)
        self._replica.forget_optimizer_state()

    def _share(self, shard: int) -> Share:
        return Share(shard, self._draw.done[shard] + self._made)

    def _is_over(self, shard: int) -> bool:
        return self._made >= self._drawn[shard]

    def _weight(self, shard: int) -> float:
        """What to multiply by before an unweighted mean over all shards: V times its part of the samples."""
        batches = self._plan.batch_sizes
        used = {client: batches[client] * steps for client, steps in self._drawn.items()}
        return used[shard] * self._plan.num_workers / sum(used.values())

    def _version(self) -> int:
        return self._draw.number
