"""What does a server do whose part of the parameters hands out no shares? It applies each share once.

Like elastic_server.py a machine that is fed orders one after another, the same on
a primary and on its backup. A share's gradient is applied as soon as it comes, in
the order in which it comes to this part. A second gradient of the same share is
left out: the share was done again, because its worker was lost before part 0 had
it. Either of the two is a gradient of the same samples, and this part has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from paceline.checkpoints.snapshot import Snapshot, to_bytes
from paceline.coordinator.client.aio import UnreachableError
from paceline.core.clock import Clock
from paceline.core.ids import Rank, Version
from paceline.events.log import Log
from paceline.events.schema import PartRow
from paceline.plan.plan import Plan
from paceline.sync.assignment import Ranges, as_ranges
from paceline.sync.averaging import mean_weight
from paceline.tasks.port import Task
from paceline.transport.arena import Arena, Layout
from paceline.transport.elastic_store import ElasticHost, WorkerConnection, WorkerRequest
from paceline.transport.elastic_wire import Frame, MessageKind
from paceline.transport.partitioned_store import PieceSlice, partition_slices, slice_pieces
from paceline.transport.ports import Reply
from paceline.worker.replica import Replica
from paceline.worker.server.membership import ServerDirectory
from paceline.worker.server.replication import DeferredOutput, ReplicatedServer
from paceline.worker.server.state_machine import Order, OrderKind

# A module of its own whose parameters are the pieces of tensors that lie in the
# slice. The model's vector is laid out so that the slice's own vector is exactly
# that stretch of it. Optimizers that treat every number by itself do to the pieces
# what they would do to the whole.


@dataclass(frozen=True, slots=True)
class PartLayout:
    """What of a model lies in one part, by the names that it has there."""

    where: slice
    pieces: Mapping[str, PieceSlice]
    buffers: Mapping[str, PieceSlice]

    @classmethod
    def of(cls, layout: Layout, part: int, parts: int) -> "PartLayout":
        where = partition_slices(layout, parts)[part]
        pieces = enumerate(slice_pieces(layout.parameters, where))
        buffers = enumerate(slice_pieces(layout.buffers, where))
        return cls(
            where,
            {f"pieces.{number}": found for number, found in pieces},
            {f"statistics.{number}": found for number, found in buffers},
        )

    @property
    def numel(self) -> int:
        return int(self.where.stop - self.where.start)

    @property
    def named(self) -> Mapping[str, PieceSlice]:
        return {**self.pieces, **self.buffers}

    def put_into(self, whole: Arena, saved: Snapshot) -> None:
        """What a server of this part saved, at its place in the whole model."""
        for name, found in self.named.items():
            whole.state[found.in_vector].copy_(saved.tensors[name])

    def cut_from(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of the whole model's tensors, what lies in this part."""
        return {n: tensors[found.name].reshape(-1)[found.in_tensor] for n, found in self.named.items()}


class SlicedReplica(Replica):
    def __init__(
        self, plan: Plan, task: Task, device: torch.device, clock: Clock, *, part: int, parts: int
    ) -> None:
        super().__init__(plan, task, device, clock)
        whole = self.arena
        self.cuts = PartLayout.of(whole.layout, part, parts)
        module = _Pieces(whole.state, self.cuts)
        self.arena = Arena(module)
        self.forward = module
        self._parameters = list(module.parameters())
        # Only part 0 has the tail of the whole, but every arena has one.
        own = self.arena.layout.numel if part == 0 else self.arena.layout.buffers_start
        assert own == self.cuts.numel, "a slice is laid out as it is in the whole"


class _Pieces(nn.Module):
    def __init__(self, state: torch.Tensor, cuts: PartLayout) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(
            nn.Parameter(state[found.in_vector].clone()) for found in cuts.pieces.values()
        )
        self.statistics = nn.Module()
        for number, found in enumerate(cuts.buffers.values()):
            self.statistics.register_buffer(str(number), state[found.in_vector].clone())


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
        if order.kind is OrderKind.READ or order.number in self.applied:
            return [], []
        assert order.kind is OrderKind.PUSHED, f"{order.kind.name} is part 0's"
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


# A push is confirmed once the backup has it; a share that the part has already is
# confirmed at once. Reading is an order too, although it changes nothing: a former
# primary that does not know that it is one gets nothing confirmed, and so nobody
# reads what is out of date. A worker that was given up changes nothing any more.


class PartPrimary(ReplicatedServer):
    def __init__(
        self,
        *,
        name: str,
        server: PartServer,
        host: ElasticHost,
        membership: ServerDirectory,
        log: Log,
        clock: Clock,
        orders: int = 0,  # that the state holds already
    ) -> None:
        super().__init__(
            name=name,
            part=server.part,
            machine=server,
            host=host,
            membership=membership,
            log=log,
            clock=clock,
            orders=orders,
        )
        self._server = server

    def _is_over(self) -> bool:
        """Part 0 has finished; whoever was answered by it needs us no more."""
        return self._membership.standing.is_done and not self._due

    def _hear_worker(self, asked: WorkerRequest) -> None:
        talk, frame, rank = asked.talk, asked.frame, Rank(asked.frame.rank)
        match frame.say:
            case MessageKind.PUSH:
                self._push(talk, frame)
            case MessageKind.PULL:
                self._order(OrderKind.READ, rank, 0)
                told = Frame(MessageKind.PARAMETERS, rank, time=self._server.version)
                self._answer_when_safe(talk, told, self._server.parameters.clone())
            case MessageKind.GATHER:
                self._order(OrderKind.READ, rank, 0)
                state = torch.frombuffer(bytearray(to_bytes(self._server.snapshot())), dtype=torch.uint8)
                answer = partial(self._hand_over, talk, Frame(MessageKind.STATE, number=self._ordered), state)
                self._due.append(DeferredOutput(self._ordered, [answer]))
            case MessageKind.LEAVE:
                pass
            case _:
                talk.close()  # it takes us for part 0

    def _push(self, talk: WorkerConnection, frame: Frame) -> None:
        rank, share = Rank(frame.rank), frame.position
        if share in self._server.applied:
            self._answer_when_safe(talk, Frame(MessageKind.APPLIED, rank, position=share))
            return
        try:
            is_member = self._is_member(rank, frame.incarnation)
        except UnreachableError:
            talk.close()  # nobody knows; it will ask again
            return
        if not is_member:
            talk.answer(Frame(MessageKind.FENCED, rank))
            return
        _, rows = self._order(OrderKind.PUSHED, rank, share, talk.gradient)
        answer = partial(talk.answer, Frame(MessageKind.APPLIED, rank, position=share))
        self._due.append(DeferredOutput(self._ordered, [answer], rows))

    def _hand_over(self, talk: WorkerConnection, frame: Frame, state: torch.Tensor) -> None:
        self._record()  # first: a checkpoint must never be ahead of the log
        talk.answer(frame, state)

    def _answer_when_safe(
        self, talk: WorkerConnection, frame: Frame, vector: torch.Tensor | None = None
    ) -> None:
        self._due.append(DeferredOutput(self._ordered, [partial(talk.answer, frame, vector)]))

    def _is_member(self, rank: Rank, incarnation: int) -> bool:
        def lives() -> bool:
            worker = self._membership.standing.living.get(f"worker-{rank}")
            return worker is not None and worker.incarnation == incarnation

        if not lives():
            self._membership.look()  # it may have come a moment ago
        return lives()
