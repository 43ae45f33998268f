"""What does every primary server do? It orders, tells its backup, and answers what that has.

Every order goes to the backup before it is carried out here, and nobody is
answered before it is safe (backup_line.py says when): whatever a worker was told
survives us. One thread does it all, order after order. What is asked of a server,
and what it does then, is in primary.py (part 0) and part_primary.py (the others).
"""

import queue
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline.checkpoints.snapshot import Snapshot, to_bytes
from paceline.coordinator.client.aio import RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import Clock, monotonic_s
from paceline.core.ids import Rank
from paceline.events.log import Log
from paceline.events.schema import ServerRow
from paceline.transport import tcp_wire
from paceline.transport.elastic_store import (
    Acknowledged,
    BackupApplied,
    BackupConnection,
    BackupLost,
    Disconnected,
    ElasticHost,
    HostEvent,
    MembershipChanged,
    WorkerConnection,
    WorkerRequest,
)
from paceline.transport.elastic_wire import Frame, MessageKind
from paceline.transport.ports import Reply
from paceline.worker.evaluation import EvaluatedRow
from paceline.worker.server.membership import RESUME, SHARD, FencedError, ServerDirectory
from paceline.worker.server.state_machine import Order, OrderKind

# Who the backup is, is agreed on with the coordinator, in this order: its
# confirmation is waited for, then it is named. And the other way round: it is
# struck out, then nothing is waited for. So whoever is promoted has everything
# that was ever safe, and of two servers that both think they are primary, one
# finds nothing of its own safe any more.


class BackupReplicator:
    def __init__(self, *, name: str, membership: ServerDirectory) -> None:
        self._name = name
        self._membership = membership
        self.link: BackupConnection | None = None
        self._is_guarded = False  # nothing is safe without the backup
        self._confirmed = 0

    def safe(self, ordered: int) -> int:
        """Of so many orders, how many are safe now?"""
        if self._is_guarded:
            return self._confirmed
        return ordered if self._may_answer_alone() else 0

    def begin(self, link: BackupConnection) -> None:
        """This server is told everything from here on; it counts when it confirms that it has the state."""
        self.link, self._is_guarded = link, False

    def tell(self, frame: Frame, payload: memoryview | None = None) -> None:
        if self.link is None:
            return
        try:
            self.link.send(frame, payload)
        except OSError:
            self.link.close()  # its thread reports that it is gone, and only then do we go on without it

    def confirm(self, number: int) -> bool:
        """The backup has all orders up to this one; was it named just now?"""
        self._confirmed = number
        if self._is_guarded or self.link is None:
            return False
        self._is_guarded = True
        self._agree_on(self.link.name)
        return self.link is not None

    def lose(self) -> None:
        """Its connection is gone; it may live, so the coordinator must know before we go on alone."""
        if self._is_guarded:
            self._agree_on("")
        self._let_go()

    def look(self) -> None:
        """Are we still primary, and is our backup still the backup? FencedError: we are not."""
        place = self._membership.standing.place
        if self._membership.is_fenced or place.primary != self._name:
            raise self._fenced(place)
        if self._is_guarded and self.link is not None and place.backup != self.link.name:
            self._let_go()

    def _let_go(self) -> None:
        if self.link is not None:
            self.link.close()
        self.link, self._is_guarded = None, False

    def _may_answer_alone(self) -> bool:
        # Half a lease: if we stood still for longer, another may be primary by now.
        standing, membership = self._membership.standing, self._membership
        place, me = standing.placed, standing.living.get(self._name)
        is_ours = place is not None and place.primary == self._name and not place.backup
        is_me = me is not None and me.incarnation == membership.number
        return is_ours and is_me and monotonic_s() - standing.taken_s < membership.lease_s / 2

    def _agree_on(self, backup: str) -> None:
        """The coordinator knows who our backup is, or that we have none, when this returns."""
        while True:
            place = self._membership.standing.place
            if place.primary != self._name:
                raise self._fenced(place)
            if place.backup == backup:
                return
            try:
                self._membership.put(primary=self._name, backup=backup, epoch=place.epoch)
            except RefusedError as error:
                if backup and error.why == pb.Why.Name(pb.NOT_FOUND):  # it is lost already
                    self._let_go()
                    return
                self._read_again()  # the place has changed meanwhile: decide anew
            except UnreachableError:
                self._read_again()

    def _read_again(self) -> None:
        """What the coordinator says now; without it nothing can be decided."""
        while True:
            try:
                self._membership.look()
                return
            except UnreachableError:
                if self._membership.standing.is_alone:
                    raise
                if self._membership.is_fenced:
                    raise self._fenced(self._membership.standing.place) from None

    def _fenced(self, place: pb.ServerPlace) -> FencedError:
        who = place.primary or "nobody"
        return FencedError(
            f"{self._name} is not primary of part {SHARD} any more: {who} is, in epoch {place.epoch}",
            "its successor goes on; a new process starts under this name",
        )


TICK_S = 0.1
RECORD_S = 0.25
Row = ServerRow | EvaluatedRow


class StateMachine(Protocol):
    """What is the same on a primary and on its backup: equal orders lead to equal bits."""

    @property
    def numel(self) -> int:
        """Of what a worker pushes."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    def order(
        self, order: Order, gradient: torch.Tensor | None = None
    ) -> tuple[Sequence[Reply], Sequence[Row]]:
        """Carry it out: who is answered what, and what is to be recorded."""
        ...

    def whole(self) -> Snapshot: ...

    def take_whole(self, saved: Snapshot) -> None: ...


@dataclass(frozen=True, slots=True)
class DeferredOutput:
    """What is said and recorded once order `number` is safe."""

    number: int
    answers: Sequence[Callable[[], None]]
    rows: Sequence[Row] = ()


def record_row(log: Log, row: Row) -> None:
    if isinstance(row, EvaluatedRow):
        row.write(log)
    else:
        log.add_server(row)


class ReplicatedServer(ABC):
    def __init__(
        self,
        *,
        name: str,
        machine: StateMachine,
        host: ElasticHost,
        membership: ServerDirectory,
        log: Log,
        clock: Clock,
        orders: int = 0,  # that the state holds already
    ) -> None:
        self._name, self._machine = name, machine
        self._host, self._membership = host, membership
        self._log, self._clock = log, clock
        self._ordered = orders
        self._due: deque[DeferredOutput] = deque()
        self._line = BackupReplicator(name=name, membership=membership)
        self._applicant: BackupConnection | None = None
        self._began_s = self._recorded_s = monotonic_s()
        self._rows: list[Row] = []  # safe, and not in the log yet

    def run(self) -> None:
        """Until all work is done and everybody knows; FencedError: somebody else is primary."""
        self._membership.when_changed(lambda: self._host.heard.put(MembershipChanged()))
        self._look_around()
        while not self._is_over():
            heard = self._next()
            if heard is not None:
                self._hear(heard)
            self._release()
            if self._due and self._line.link is None and self._membership.standing.is_alone:
                what = f"{self._name} has no backup, and the coordinator was given up"
                raise UnreachableError(what, RESUME)  # another primary cannot be ruled out
            self._take_in()
            self._between_orders()
            if monotonic_s() - self._recorded_s > RECORD_S:
                self._record()
        self._record()

    def end(self) -> None:
        """The final state is on disk: the backup is not needed any more."""
        self._line.tell(Frame(MessageKind.END, number=self._ordered))

    @abstractmethod
    def _is_over(self) -> bool: ...

    @abstractmethod
    def _hear_worker(self, asked: WorkerRequest) -> None: ...

    def _hung_up(self, talk: WorkerConnection) -> None:
        return  # whoever it was asks again when it comes back

    def _between_orders(self) -> None:
        return

    def _look_around(self) -> None:
        """Are we still primary?"""
        self._line.look()

    def _next(self) -> HostEvent | None:
        try:
            return self._host.heard.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _hear(self, heard: HostEvent) -> None:
        match heard:
            case WorkerRequest():
                self._hear_worker(heard)
            case Disconnected(talk):
                self._hung_up(talk)
            case BackupApplied(link):
                if self._applicant is not None:
                    self._applicant.close()
                self._applicant = link
            case Acknowledged(link, number) if link is self._line.link:
                if self._line.confirm(number):
                    epoch = self._membership.standing.place.epoch
                    self._log.write("backup_placed", part=SHARD, backup=link.name, epoch=epoch)
            case BackupLost(link) if link is self._line.link:
                self._line.lose()
            case BackupLost(link) if link is self._applicant:
                self._applicant = None
            case MembershipChanged():
                self._look_around()
            case _:
                pass  # of a link that is not ours any more

    def _order(
        self,
        kind: OrderKind,
        rank: Rank,
        number: int,
        gradient: torch.Tensor | None = None,
        text: str = "",
    ) -> tuple[Sequence[Reply], Sequence[Row]]:
        """Whoever calls it says what is due when it is safe."""
        order = Order(kind, rank, number, self._clock.now_ns(), text)
        self._ordered += 1
        # Before it is carried out: that may change the gradient.
        payload = memoryview(text.encode()) if text else None
        if gradient is not None:
            payload = tcp_wire.bytes_of(gradient)
        self._line.tell(Frame(MessageKind.ORDER, rank, number, self._ordered, kind, order.at_ns), payload)
        return self._machine.order(order, gradient)

    def _release(self) -> None:
        """Say and record what is safe."""
        safe = self._line.safe(self._ordered)
        while self._due and self._due[0].number <= safe:
            due = self._due.popleft()
            self._rows += due.rows
            for answer in due.answers:
                answer()

    def _take_in(self) -> None:
        """Somebody wants to be our backup: it gets the whole state, and every order from here on."""
        if self._applicant is None:
            return
        if self._line.link is not None:
            self._line.lose()
        self._release()
        if self._due:
            return  # what is not safe yet would be recorded by nobody if we died: a moment later
        self._record()
        link, self._applicant = self._applicant, None
        self._line.begin(link)
        state = to_bytes(self._machine.whole())
        self._line.tell(Frame(MessageKind.STATE, number=self._ordered), memoryview(state))

    def _record(self) -> None:
        """Rows of safe orders are in the log; the backup need not keep them any more."""
        self._recorded_s = monotonic_s()
        if not self._rows:
            return
        for row in self._rows:
            record_row(self._log, row)
        self._log.flush()
        self._rows = []
        number = self._due[0].number - 1 if self._due else self._ordered
        self._line.tell(Frame(MessageKind.RECORDED, number=number))
