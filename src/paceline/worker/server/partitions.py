"""What differs from part to part where the parameters are held by several pairs of servers?

Part 0 hands out shares and keeps everything that is not parameters; the others
apply their slice of each share. With one part there is nothing to cut.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Protocol

import torch

from paceline.checkpoints.snapshot import Snapshot, from_bytes
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import HopelessError, PeerLostError, ProtocolError, TrainingError
from paceline.core.ids import Rank, Version
from paceline.plan.plan import Plan
from paceline.tasks.port import Task
from paceline.transport import elastic_wire as wire
from paceline.transport.arena import Layout
from paceline.transport.elastic_store import ElasticStore
from paceline.transport.elastic_wire import CONNECT_TIMEOUT_S, SIDE, Frame, MessageKind
from paceline.transport.partitioned_store import PartitionConnection, PartitionedStore, partition_slices
from paceline.transport.ports import ParameterStore
from paceline.worker.replica import Replica
from paceline.worker.server.membership import PrimaryRoute, ServerDirectory
from paceline.worker.server.partition_server import PartLayout, PartServer, SlicedReplica
from paceline.worker.server.state_machine import ElasticServer
from paceline.worker.wiring import strategy_class

# It asks when everything that it has done itself is safe, and begins nothing new
# meanwhile. Every share that part 0 has is in every part by then. A part may have
# more: shares whose workers have not come to part 0 yet. They are done again after
# such a checkpoint, and left out by the parts that have them. So this is a
# consistent cut, and nobody has to stop for it.

REPLY_TIMEOUT_S = 5.0  # without a sign of life; one that is frozen has been succeeded by then
RETRY_S = 0.01


class OtherParts(Protocol):
    def states(self) -> list[Snapshot]:
        """Of part 1 and those after it."""
        ...


class PartGatherer:
    """Asks the primaries of the other parts."""

    def __init__(self, membership: ServerDirectory, *, parts: int, token: bytes, timeout_s: float) -> None:
        self._membership, self._parts = membership, parts
        self._token, self._timeout_s = token, timeout_s

    def states(self) -> list[Snapshot]:
        return [self._state(part) for part in range(1, self._parts)]

    def _state(self, part: int) -> Snapshot:
        until_s = monotonic_s() + self._timeout_s
        while True:
            try:
                return self._ask(part)
            except (OSError, PeerLostError) as error:
                if monotonic_s() > until_s:
                    raise TrainingError(
                        f"part {part} did not say what it holds within {self._timeout_s:g} s: {error}",
                        "look at the logs of its servers",
                    ) from error
                SystemClock().sleep(RETRY_S)

    def _ask(self, part: int) -> Snapshot:
        place = PrimaryRoute(self._membership, part, self._timeout_s).primary()
        if place is None:
            raise PeerLostError(f"the servers of part {part} have ended", "look at their logs")
        with wire.connect(
            place.host, place.port, token=self._token, side=SIDE, timeout_s=CONNECT_TIMEOUT_S
        ) as connection:
            connection.settimeout(REPLY_TIMEOUT_S)
            wire.send(connection, Frame(MessageKind.GATHER))
            frame = wire.receive(connection)
            if frame.say is not MessageKind.STATE:
                raise ProtocolError(f"part {part} answered with {frame.say.name}", "look at its log")
            return from_bytes(bytes(wire.receive_bytes(connection, frame)))


class CombinedParts:
    """All parts as one, for checkpoints and for the final model."""

    def __init__(self, plan: Plan, task: Task, server: ElasticServer, others: OtherParts) -> None:
        assert plan.elastic is not None, "the run is elastic"
        self._server, self._others = server, others
        parts = plan.elastic.servers
        self.model = Replica(plan, task, torch.device("cpu"), SystemClock())
        self._cuts = [PartLayout.of(self.model.arena.layout, part, parts) for part in range(parts)]

    @property
    def version(self) -> Version:
        return self._server.version

    @property
    def applied(self) -> AbstractSet[int]:
        return self._server.applied

    def snapshot(self) -> Snapshot:
        """The whole model by its own names, and what each part needs besides; `model` then holds it too."""
        mine = self._server.snapshot()
        saved = [mine, *self._others.states()]
        tensors: dict[str, torch.Tensor] = {}
        for part, (cuts, found) in enumerate(zip(self._cuts, saved, strict=True)):
            cuts.put_into(self.model.arena, found)
            rest = {name: tensor for name, tensor in found.tensors.items() if name not in cuts.named}
            tensors |= {_name(part, name): tensor for name, tensor in rest.items()}
        facts = {**mine.facts, "parts": [found.facts for found in saved]}
        return Snapshot({**self.model.arena.named_state(), **tensors}, facts)

    def live(self) -> Snapshot:
        """Nobody changes what was gathered."""
        return self.snapshot()


def part_of(saved: Snapshot, part: int, cuts: PartLayout) -> Snapshot:
    """What this part needs of a checkpoint of all."""
    prefix = _name(part, "")
    rest = {n.removeprefix(prefix): t for n, t in saved.tensors.items() if n.startswith(prefix)}
    return Snapshot({**rest, **cuts.cut_from(saved.tensors)}, saved.facts["parts"][part])


def _name(part: int, name: str) -> str:
    return f"part-{part}.{name}"


def parts_of(plan: Plan) -> int:
    assert plan.elastic is not None, "the run is elastic"
    return plan.elastic.servers


def part_of_name(who: str) -> int:
    """Of `server-1-a`: 1."""
    return int(who.split("-")[1])


def build_machine(plan: Plan, task: Task, part: int) -> ElasticServer | PartServer:
    cpu, clock, parts = torch.device("cpu"), SystemClock(), parts_of(plan)
    if parts == 1:
        replica = Replica(plan, task, cpu, clock)
        replica.prepare_optimizer()
        return ElasticServer(plan, replica, strategy_class(plan.mode))
    sliced = SlicedReplica(plan, task, cpu, clock, part=part, parts=parts)
    sliced.prepare_optimizer()
    if part == 0:
        return ElasticServer(plan, sliced, strategy_class(plan.mode))
    return PartServer(plan, sliced, part)


def restore(machine: ElasticServer | PartServer, saved: Snapshot, part: int) -> None:
    """From a checkpoint, which holds all parts."""
    replica = machine.replica
    machine.restore(part_of(saved, part, replica.cuts) if isinstance(replica, SlicedReplica) else saved)


def refuse_restart(plan: Plan, part: int) -> None:
    """A part whose servers are all lost could go back to a checkpoint, but the others are ahead of that."""
    if parts_of(plan) > 1:
        raise HopelessError(
            f"both servers of part {part} were lost, and the other parts cannot go back with it",
            "run `paceline train --resume RUN`: all parts go on from the newest checkpoint",
        )


class _News:
    """Several lines hear of changes, where a membership tells only one."""

    def __init__(self, membership: ServerDirectory) -> None:
        self._calls: dict[int, Callable[[], None]] = {}
        membership.when_changed(self._tell)

    def listen(self, part: int, call: Callable[[], None]) -> None:
        self._calls[part] = call

    def _tell(self) -> None:
        for call in list(self._calls.values()):
            call()


class _PartRoute(PrimaryRoute):
    def __init__(self, membership: ServerDirectory, part: int, timeout_s: float, news: _News) -> None:
        super().__init__(membership, part, timeout_s)
        self._news = news

    def when_moved(self, call: Callable[[], None]) -> None:
        self._news.listen(self._part, call)


def build_store(
    plan: Plan,
    rank: Rank,
    layout: Layout,
    *,
    membership: ServerDirectory,
    token: bytes,
    on_refused: Callable[[int, int], None],
) -> ParameterStore:
    """A worker's end of all parts."""
    parts, clock, news = parts_of(plan), SystemClock(), _News(membership)
    routes = [_PartRoute(membership, part, plan.timeout_s, news) for part in range(parts)]
    head = ElasticStore(routes[0], rank, token=token, clock=clock, timeout_s=plan.timeout_s)
    head.on_refused = on_refused
    if parts == 1:
        return head
    others = [
        PartitionConnection(r, rank, token=token, clock=clock, timeout_s=plan.timeout_s) for r in routes[1:]
    ]
    return PartitionedStore(head, others, partition_slices(layout, parts))
