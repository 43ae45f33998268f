"""Who may change a part, and who may read it? Real servers and lines, and a table of who lives."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tests.fixtures.waiting import until
from tests.worker.test_part_servers import machine, parted_plan
from tests.worker.test_server_pair import TOKEN, Member, Seat, Town

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import SystemClock
from paceline.core.ids import Rank
from paceline.events.log import MemoryLog
from paceline.plan.plan import Plan
from paceline.transport.elastic_store import ElasticHost
from paceline.transport.elastic_wire import MessageKind
from paceline.transport.partitioned_store import PartitionConnection
from paceline.transport.ports import Slots
from paceline.worker.server.backup import BackupServer
from paceline.worker.server.membership import PrimaryRoute
from paceline.worker.server.partition_server import PartPrimary, PartServer
from paceline.worker.server.partitions import PartGatherer

PART = 1


class PartMember(Member):
    """A server of part 1, in a thread."""

    def __init__(self, name: str, town: Town, plan: Plan) -> None:
        server = machine(plan, PART)
        assert isinstance(server, PartServer)
        self.name, self.part_server, self.log = name, server, MemoryLog()
        self.host = ElasticHost(numel=server.numel, dtype=server.dtype, token=TOKEN)
        self.seat = town.join(name, "server", f"127.0.0.1:{self.host.port}")
        self.begin()

    def _backup(self) -> BackupServer:
        return BackupServer(
            name=self.name, part=PART, server=self.part_server, membership=self.seat, token=TOKEN
        )

    def _lead(self, orders: int) -> None:
        primary = PartPrimary(
            name=self.name,
            server=self.part_server,
            host=self.host,
            membership=self.seat,
            log=self.log,
            clock=SystemClock(),
            orders=orders,
        )
        primary.run()
        primary.end()


class Pusher:
    """A worker's line to the part."""

    def __init__(self, index: int, town: Town, server: PartServer) -> None:
        self.seat: Seat = town.join(f"worker-{index}", "worker")
        route = PrimaryRoute(self.seat, PART, 10.0)
        self.line = PartitionConnection(route, Rank(index), token=TOKEN, clock=SystemClock(), timeout_s=10.0)
        self.slots = Slots.new(server.numel, server.dtype)
        self.line.use(self.slots)

    def push(self, share: int) -> MessageKind | None:
        self.slots.gradients.fill_(1.0)
        self.line.push(share, self.seat.number)
        return self.line.answer()

    def pull(self) -> torch.Tensor:
        self.line.pull(self.seat.number)
        assert self.line.answer() is MessageKind.PARAMETERS
        return self.slots.parameters


@contextmanager
def a_part() -> Iterator[tuple[Town, PartMember, PartMember, list[Pusher]]]:
    plan, town = parted_plan("asgd"), Town(PART)
    first, second = (PartMember(name, town, plan) for name in ("server-1-a", "server-1-b"))
    pushers = [Pusher(index, town, first.part_server) for index in range(2)]
    first.start()
    until(lambda: town.place.primary == first.name, "the first is primary")
    second.start()
    try:
        until(lambda: town.place.backup == second.name, "the second is its backup")
        yield town, first, second, pushers
    finally:
        for pusher in pushers:
            pusher.line.close()
        town.is_done = True  # part 0 has finished
        for member in (first, second):
            member.seat.is_deaf = False
            member.seat.look()
        until(lambda: bool(first.ended and second.ended), "both have ended")
        for member in (first, second):
            member.end()


def test_a_share_that_comes_twice_is_applied_once_whoever_computed_it() -> None:
    with a_part() as (_, first, second, (one, other)):
        assert one.push(3) is MessageKind.APPLIED
        assert one.push(3) is MessageKind.APPLIED  # as if the answer was lost on the way
        assert other.push(3) is MessageKind.APPLIED  # as if the first was lost before part 0 had it
        assert other.push(0) is MessageKind.APPLIED
        assert torch.equal(one.pull(), first.part_server.parameters)
        until(lambda: second.part_server.version == 2, "the backup has both")
        assert torch.equal(second.part_server.parameters, first.part_server.parameters)
    assert [row.position for row in first.log.parts] == [3, 0]


def test_a_worker_that_was_given_up_changes_nothing() -> None:
    with a_part() as (town, first, _, (one, other)):
        assert one.push(0) is MessageKind.APPLIED
        town.lose("worker-0")
        assert one.push(1) is MessageKind.FENCED
        assert one.push(0) is MessageKind.APPLIED  # that was before
        assert other.push(1) is MessageKind.APPLIED
        assert set(first.part_server.applied) == {0, 1}
        with town.changed:  # it is taken in again
            town.living["worker-0"] = pb.Worker(worker="worker-0", role="worker", incarnation=50)
        one.seat.number = 50
        assert one.push(2) is MessageKind.APPLIED, "the server finds out that it came back"


def test_a_former_primary_that_hears_of_nothing_lets_nobody_read_what_is_out_of_date() -> None:
    with a_part() as (town, first, second, (one, other)):
        assert one.push(0) is MessageKind.APPLIED
        one.pull()
        first.seat.is_deaf = one.seat.is_deaf = True  # both go on as if nothing had happened
        town.lose(first.name)
        assert other.push(1) is MessageKind.APPLIED  # the other worker has found the new primary
        one.line.pull(one.seat.number)
        one.seat.is_deaf = False
        one.seat.look()  # the only way in which it can be answered
        assert one.line.answer() is MessageKind.PARAMETERS
        assert torch.equal(one.slots.parameters, second.part_server.parameters)
        assert set(second.part_server.applied) == {0, 1}


def test_what_a_part_holds_is_handed_over_with_its_rows_recorded() -> None:
    with a_part() as (_, first, _, (one, _)):
        for share in range(5):
            assert one.push(share) is MessageKind.APPLIED
        (saved,) = PartGatherer(one.seat, parts=2, token=TOKEN, timeout_s=10.0).states()
        assert len(first.log.parts) == 5
        again = machine(first.part_server.plan, PART)
        assert isinstance(again, PartServer)
        again.restore(saved)
        assert torch.equal(again.parameters, first.part_server.parameters)
        assert set(again.applied) == set(range(5))
