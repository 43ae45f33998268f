"""What does a server do whose part of the parameters hands out no shares? It applies each share once.

Like elastic_server.py a machine that is fed orders one after another, the same on
a primary and on its backup. A share's gradient is applied as soon as it comes, in
the order in which it comes to this part. A second gradient of the same share is
left out: the share was done again, because its worker was lost before part 0 had
it. Either of the two is a gradient of the same samples, and this part has one.
"""

import torch

from paceline.checkpoints.store import Snapshot
from paceline.events.schema import PartRow
from paceline.ids import Version
from paceline.plan.plan import Plan
from paceline.sync.assignment import Ranges, as_ranges
from paceline.sync.averaging import mean_weight
from paceline.transport.ports import Reply
from paceline.worker.elastic_server import Kind, Order
from paceline.worker.sliced_replica import SlicedReplica


class PartServer:
    def __init__(self, plan: Plan, replica: SlicedReplica, part: int) -> None:
        self.plan, self.replica, self.part = plan, replica, part
        self.version = Version(0)
        self.applied = Ranges()  # shares of the work that are in this part
        self._weights = [mean_weight(rank, plan.batch_sizes) for rank in range(plan.num_workers)]

    @property
    def numel(self) -> int:
        return self.replica.cuts.numel

    @property
    def dtype(self) -> torch.dtype:
        return self.replica.arena.layout.dtype

    @property
    def parameters(self) -> torch.Tensor:
        return self.replica.arena.state[: self.numel]

    def order(self, order: Order, gradient: torch.Tensor | None = None) -> tuple[list[Reply], list[PartRow]]:
        if order.kind is Kind.READ or order.number in self.applied:
            return [], []
        assert order.kind is Kind.PUSHED, f"{order.kind.name} is part 0's"
        assert gradient is not None, "a push brings a gradient"
        self._apply(order.number, gradient)
        return [], [PartRow(order.at_ns, self.part, order.rank, order.number, self.version)]

    def _apply(self, share: int, gradient: torch.Tensor) -> None:
        arena = self.replica.arena
        mine = arena.gradients[: self.numel].copy_(gradient)
        weight = self._weights[share % self.plan.num_workers]
        if weight != 1.0:
            mine.mul_(weight)
        arena.bind_gradients()
        self.replica.step = share // self.plan.num_workers
        self.replica.update()
        self.version = Version(self.version + 1)
        self.applied.add(share)

    def snapshot(self) -> Snapshot:
        saved = self.replica.snapshot()
        facts = {**saved.facts, "version": self.version, "applied": as_ranges(self.applied)}
        return Snapshot(saved.tensors, facts)

    def restore(self, saved: Snapshot) -> None:
        self.replica.restore(saved)
        self.version = Version(saved.facts["version"])
        self.applied = Ranges((first, end) for first, end in saved.facts["applied"])

    def whole(self) -> Snapshot:
        """Everything that another server needs to go on from here."""
        return self.snapshot()

    def take_whole(self, saved: Snapshot) -> None:
        self.restore(saved)
