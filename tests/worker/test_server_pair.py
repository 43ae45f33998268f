"""Two servers that both believe to be primary: which answers count, and nothing counts twice.

Real servers, stores and sockets, in threads; only the coordinator is a table here, so that a test
decides who hears what and when.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from tests.fixtures.waiting import until
from tests.worker.test_elastic_server import bits, elastic_plan, new_server

from paceline.coordinator.client.aio import RefusedError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import PacelineError
from paceline.core.ids import Clock, Rank
from paceline.events.log import MemoryLog
from paceline.plan.plan import Plan
from paceline.transport.elastic_store import ElasticHost, ElasticStore
from paceline.transport.handshake import Dialer, PeerTls
from paceline.worker.checkpointing import ServerSaver
from paceline.worker.server.backup import BackupEnd, BackupServer
from paceline.worker.server.membership import CoordinatorView, FencedError, PrimaryRoute, primary_of
from paceline.worker.server.primary import PrimaryServer
from paceline.worker.server.replication import record_row
from paceline.worker.tls import client_tls_context, server_tls_context

TOKEN = b"t" * 32
RUN = "a run"
HOST = "127.0.0.1"
MODES = pytest.mark.parametrize(
    ("mode", "with_tls"),
    [("asgd", False), ("ssp", False), ("ps", False), ("backup", False), ("asgd", True), ("backup", True)],
)
Found = TypeVar("Found")


class Town:
    """Fake coordinator: each membership receives the view unless it is deaf."""

    def __init__(self, *, with_tls: bool = False) -> None:
        self.with_tls = with_tls
        self.is_done = False
        self.place = pb.ServerPlace()
        self.living: dict[str, pb.Worker] = {}
        self.memberships: list[FakeMembership] = []
        self.changed = threading.Condition()

    def tls(self) -> PeerTls | None:
        return PeerTls(*server_tls_context(HOST), client_tls_context) if self.with_tls else None

    def dialer(self) -> Dialer:
        return Dialer(run=RUN, token=TOKEN, trusting=client_tls_context if self.with_tls else None)

    def join(self, name: str, role: str, address: str = "", certificate: str = "") -> "FakeMembership":
        with self.changed:
            number = len(self.memberships) + 1
            self.living[name] = pb.Worker(worker=name, role=role, address=address, incarnation=number)
            self.living[name].facts["certificate"] = certificate
            membership = FakeMembership(self, number)
            self.memberships.append(membership)
        self.tell()
        return membership

    def tell(self) -> None:
        for membership in self.memberships:
            if not membership.is_deaf:
                membership.refresh()

    def lose(self, name: str) -> None:
        """As the coordinator does: where it was primary, its backup takes over."""
        with self.changed:
            self.living.pop(name)
            if self.place.primary == name:
                self._put(self.place.backup, "")
            elif self.place.backup == name:
                self._put(self.place.primary, "")
        self.tell()

    def put(self, primary: str, backup: str, epoch: int) -> None:
        with self.changed:
            if epoch != self.place.epoch:
                raise RefusedError("another epoch", "look again", pb.Why.Name(pb.FENCED))
            self._put(primary, backup)
        self.tell()

    def _put(self, primary: str, backup: str) -> None:
        self.place = pb.ServerPlace(primary=primary, backup=backup, epoch=self.place.epoch + 1)


class FakeMembership:
    def __init__(self, town: Town, number: int) -> None:
        self.town, self.number = town, number
        self.view = CoordinatorView()
        self.lease_s, self.is_fenced, self.is_deaf = 1000.0, False, False
        self._call: Callable[[], None] = lambda: None

    def when_changed(self, call: Callable[[], None]) -> None:
        self._call = call

    def refresh(self) -> None:
        with self.town.changed:
            town = self.town
            placed = town.place if town.place.epoch else None
            self.view = CoordinatorView(monotonic_s(), placed, dict(town.living), town.is_done)
            self.town.changed.notify_all()
        self._call()

    def put(self, *, primary: str, backup: str, epoch: int) -> None:
        self.town.put(primary, backup, epoch)
        self.refresh()

    def wait_for(
        self, find: Callable[[CoordinatorView], Found | None], description: str, timeout_s: float
    ) -> Found:
        with self.town.changed:
            assert self.town.changed.wait_for(lambda: find(self.view) is not None, timeout_s), description
            result = find(self.view)
            assert result is not None
            return result


class Member:
    """A server of the pair, in a thread: primary at once, or backup and then perhaps primary."""

    def __init__(self, name: str, town: Town, plan: Plan, folder: Path) -> None:
        self.name, self.server, self.log = name, new_server(plan), MemoryLog()
        layout = self.server.replica.arena.layout
        self.host = ElasticHost(
            HOST, run=RUN, name=name, token=TOKEN, numel=layout.numel, dtype=layout.dtype, tls=town.tls()
        )
        listener = self.host.listener
        self.membership = town.join(name, "server", listener.address, listener.certificate)
        self._dialer = town.dialer()
        self._saver = ServerSaver(plan, self.server, root=folder, log=self.log)
        self.begin()

    def begin(self) -> None:
        self.ended: str = ""
        self._thread = threading.Thread(target=self._live)

    def start(self) -> None:
        self._thread.start()

    def _live(self) -> None:
        try:
            is_led = bool(self.membership.view.place.primary)
            orders = self._follow() if is_led else self._claim()
            if orders is not None:
                self._lead(orders)
                self.ended = "done"
        except FencedError as error:
            self.ended = f"fenced: {error.what}"

    def _claim(self) -> int:
        self.membership.put(primary=self.name, backup="", epoch=0)
        return 0

    def _follow(self) -> int | None:
        backup = self._backup()
        primary = primary_of(self.membership.view)
        assert primary is not None
        if backup.follow(primary) is BackupEnd.DONE:
            self.ended = "done"
            return None

        def decided(view: CoordinatorView) -> bool | None:
            place = view.place
            return None if place.backup == self.name else place.primary == self.name

        if not self.membership.wait_for(decided, "promotion", 10):
            self.ended = "left"
            return None
        for row in backup.rows():
            record_row(self.log, row)
        return backup.orders

    def _backup(self) -> BackupServer:
        return BackupServer(
            name=self.name, server=self.server, membership=self.membership, dialer=self._dialer
        )

    def _lead(self, orders: int) -> None:
        primary = PrimaryServer(
            name=self.name,
            server=self.server,
            host=self.host,
            membership=self.membership,
            log=self.log,
            saver=self._saver,
            clock=SystemClock(),
            orders=orders,
        )
        primary.run()
        primary.end()

    def end(self) -> None:
        self.host.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), f"{self.name} is still at work"
        self.host.join()


class Hand:
    """A worker in a thread: its gradient is a function of the share."""

    def __init__(self, index: int, town: Town, plan: Plan) -> None:
        self.name, self.town = f"worker-{index}", town
        self.membership = town.join(self.name, "worker")
        route = PrimaryRoute(self.membership, 20.0)
        self.store = ElasticStore(route, Rank(index), town.dialer(), clock=SystemClock(), timeout_s=20.0)
        self.answered: list[int] = []  # shares whose push was answered
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None
        self._numel = new_server(plan).replica.arena.layout
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def _work(self) -> None:
        try:
            slots = self.store.open(self._numel.numel, self._numel.dtype)
            self.store.join(Clock(0))
            while (pulled := self.store.pull()).position is not None:
                generator = torch.Generator().manual_seed(pulled.position)
                slots.gradients.copy_(torch.randn(slots.gradients.shape, generator=generator))
                self.may_go_on.wait()
                self.store.push(wants_stop=False)
                self.answered.append(pulled.position)
        except PacelineError as error:
            self.error = error
        self.store.close()
        self.town.lose(self.name)

    def end(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self.name} is still at work"
        assert self.error is None, self.error


@contextmanager
def a_pair(plan: Plan, folder: Path, *, with_tls: bool = False) -> Iterator[tuple[Town, Member, Member]]:
    town = Town(with_tls=with_tls)
    first, second = (Member(name, town, plan, folder) for name in ("server-0-a", "server-0-b"))
    first.start()
    until(lambda: town.place.primary == first.name, "the first is primary")
    second.start()
    try:
        until(lambda: town.place.backup == second.name, "the second is its backup")
        yield town, first, second
    finally:
        for member in (first, second):
            member.membership.is_deaf = False
            member.membership.refresh()
            member.end()


def applied(*members: Member) -> list[int]:
    """In the order of time, each row once, as a reader of the event log sees it."""
    rows = dict.fromkeys(sorted((r for m in members for r in m.log.server), key=lambda row: row.at_ns))
    return [row.position for row in rows if row.op == "apply"]


@MODES
def test_undisturbed_both_servers_end_with_the_same_bits(mode: str, with_tls: bool, tmp_path: Path) -> None:
    plan = elastic_plan(mode, steps=10)
    with a_pair(plan, tmp_path, with_tls=with_tls) as (town, first, second):
        hands = [Hand(index, town, plan) for index in range(3)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.end()
        until(lambda: bool(first.ended and second.ended), "both are done")
    assert (first.ended, second.ended) == ("done", "done")
    assert sorted(applied(first, second)) == list(range(30))
    assert bits(first.server) == bits(second.server)


@MODES
def test_a_partitioned_primary_answers_no_worker_once_its_backup_was_promoted(
    mode: str, with_tls: bool, tmp_path: Path
) -> None:
    plan = elastic_plan(mode, steps=400)  # more than are made before it is cut off
    with a_pair(plan, tmp_path, with_tls=with_tls) as (town, first, second):
        hands = [Hand(index, town, plan) for index in range(3)]
        for hand in hands:
            hand.start()
        until(lambda: first.server.version > 0, "work is done")
        first.membership.is_deaf = True  # it goes on as if nothing had happened
        town.lose(first.name)
        for hand in hands:
            hand.end()
        until(lambda: second.ended == "done", "the second has done the rest")
    assert first.ended.startswith("fenced")
    made = applied(first, second)
    assert sorted(made) == list(range(1200)), "every share once, whichever server was primary"
    assert {share for hand in hands for share in hand.answered} == set(range(1200))


def test_without_its_backup_a_primary_continues_only_when_that_is_agreed_on(tmp_path: Path) -> None:
    plan = elastic_plan("asgd", steps=20)
    with a_pair(plan, tmp_path) as (town, first, second):
        second.host.close()
        town.lose(second.name)  # it is told, lets its backup go, and answers alone
        hands = [Hand(index, town, plan) for index in range(3)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.end()
        until(lambda: first.ended == "done", "the first has done all")
    assert second.ended == "left"
    assert sorted(applied(first)) == list(range(60))


def test_a_worker_that_was_given_up_and_wakes_is_refused_and_joins_again(tmp_path: Path) -> None:
    plan = elastic_plan("ssp", steps=100)
    with a_pair(plan, tmp_path) as (town, first, second):
        hands = [Hand(index, town, plan) for index in range(3)]
        refused: list[int] = []
        hands[1].store.on_refused = lambda position, _: refused.append(position)
        hands[1].may_go_on.clear()
        for hand in hands:
            hand.start()
        until(lambda: first.server.version >= 2, "the others work")
        worker = town.living[hands[1].name]
        town.lose(hands[1].name)  # its share is done by others
        until(lambda: first.server.version >= 20, "the others go on without it")
        for hand in hands:
            hand.may_go_on.clear()  # the run must not end before it is back
        with town.changed:
            town.living[hands[1].name] = pb.Worker(worker=worker.worker, role="worker", incarnation=50)
            hands[1].membership.number = 50
        town.tell()
        for hand in hands:
            hand.may_go_on.set()
        for hand in hands:
            hand.end()
        until(lambda: bool(first.ended and second.ended), "both are done")
    assert len(refused) == 1
    assert sorted(applied(first, second)) == list(range(300))
    assert bits(first.server) == bits(second.server)
