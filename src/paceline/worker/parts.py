"""What differs from part to part where the parameters are held by several pairs of servers?

Part 0 hands out shares and keeps everything that is not parameters; the others
apply their slice of each share. With one part there is nothing to cut.
"""

from collections.abc import Callable

import torch

from paceline.checkpoints.store import Snapshot
from paceline.clock import SystemClock
from paceline.errors import HopelessError
from paceline.ids import Rank
from paceline.plan.plan import Plan
from paceline.tasks.port import Task
from paceline.transport.arena import Layout
from paceline.transport.elastic_store import ElasticStore
from paceline.transport.parted_store import PartedStore, PartLine
from paceline.transport.ports import ParameterStore
from paceline.transport.slices import slices_of
from paceline.worker.elastic_server import ElasticServer
from paceline.worker.gathering import part_of
from paceline.worker.part_server import PartServer
from paceline.worker.place_membership import PlaceRoute, Places
from paceline.worker.replica import Replica
from paceline.worker.sliced_replica import SlicedReplica
from paceline.worker.wiring import strategy_class


def parts_of(plan: Plan) -> int:
    assert plan.elastic is not None, "the run is elastic"
    return plan.elastic.servers


def part_named(who: str) -> int:
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


def refuse_to_begin_again(plan: Plan, part: int) -> None:
    """A part whose servers are all lost could go back to a checkpoint, but the others are ahead of that."""
    if parts_of(plan) > 1:
        raise HopelessError(
            f"both servers of part {part} were lost, and the other parts cannot go back with it",
            "run `paceline train --resume RUN`: all parts go on from the newest checkpoint",
        )


class _News:
    """Several lines hear of changes, where a membership tells only one."""

    def __init__(self, membership: Places) -> None:
        self._calls: dict[int, Callable[[], None]] = {}
        membership.when_changed(self._tell)

    def listen(self, part: int, call: Callable[[], None]) -> None:
        self._calls[part] = call

    def _tell(self) -> None:
        for call in list(self._calls.values()):
            call()


class _PartRoute(PlaceRoute):
    def __init__(self, membership: Places, part: int, timeout_s: float, news: _News) -> None:
        super().__init__(membership, part, timeout_s)
        self._news = news

    def when_moved(self, call: Callable[[], None]) -> None:
        self._news.listen(self._part, call)


def build_store(
    plan: Plan,
    rank: Rank,
    layout: Layout,
    *,
    membership: Places,
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
    others = [PartLine(r, rank, token=token, clock=clock, timeout_s=plan.timeout_s) for r in routes[1:]]
    return PartedStore(head, others, slices_of(layout, parts))
