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

from paceline.checkpoints.store import Snapshot, to_bytes
from paceline.clock import Clock, monotonic_s
from paceline.coordinator.client import UnreachableError
from paceline.events.log import Log
from paceline.events.schema import PartRow, ServerRow
from paceline.ids import Rank
from paceline.transport import tcp_wire
from paceline.transport.elastic_host import (
    Applied,
    Asked,
    Changed,
    ElasticHost,
    Has,
    Heard,
    HungUp,
    Link,
    Talk,
    Unlinked,
)
from paceline.transport.elastic_wire import Frame, Say
from paceline.transport.ports import Reply
from paceline.worker.backup_line import BackupLine
from paceline.worker.elastic_server import Kind, Order
from paceline.worker.evaluating import EvaluatedRow
from paceline.worker.place_membership import RESUME, Places

TICK_S = 0.1
RECORD_S = 0.25
Row = ServerRow | PartRow | EvaluatedRow


class Machine(Protocol):
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
class Due:
    """What is said and recorded once order `number` is safe."""

    number: int
    answers: Sequence[Callable[[], None]]
    rows: Sequence[Row] = ()


def record(log: Log, row: Row) -> None:
    if isinstance(row, EvaluatedRow):
        row.write(log)
    elif isinstance(row, PartRow):
        log.add_part(row)
    else:
        log.add_server(row)


class GuardedServer(ABC):
    def __init__(
        self,
        *,
        name: str,
        part: int,
        machine: Machine,
        host: ElasticHost,
        membership: Places,
        log: Log,
        clock: Clock,
        orders: int = 0,  # that the state holds already
    ) -> None:
        self._name, self._part, self._machine = name, part, machine
        self._host, self._membership = host, membership
        self._log, self._clock = log, clock
        self._ordered = orders
        self._due: deque[Due] = deque()
        self._line = BackupLine(name=name, part=part, membership=membership)
        self._applicant: Link | None = None
        self._began_s = self._recorded_s = monotonic_s()
        self._rows: list[Row] = []  # safe, and not in the log yet

    def run(self) -> None:
        """Until all work is done and everybody knows; FencedError: somebody else is primary."""
        self._membership.when_changed(lambda: self._host.heard.put(Changed()))
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
        self._line.tell(Frame(Say.END, number=self._ordered))

    @abstractmethod
    def _is_over(self) -> bool: ...

    @abstractmethod
    def _hear_worker(self, asked: Asked) -> None: ...

    def _hung_up(self, talk: Talk) -> None:
        return  # whoever it was asks again when it comes back

    def _between_orders(self) -> None:
        return

    def _look_around(self) -> None:
        """Are we still primary?"""
        self._line.look()

    def _next(self) -> Heard | None:
        try:
            return self._host.heard.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _hear(self, heard: Heard) -> None:
        match heard:
            case Asked():
                self._hear_worker(heard)
            case HungUp(talk):
                self._hung_up(talk)
            case Applied(link):
                if self._applicant is not None:
                    self._applicant.close()
                self._applicant = link
            case Has(link, number) if link is self._line.link:
                if self._line.confirm(number):
                    epoch = self._membership.standing.place(self._part).epoch
                    self._log.write("backup_placed", part=self._part, backup=link.name, epoch=epoch)
            case Unlinked(link) if link is self._line.link:
                self._line.lose()
            case Unlinked(link) if link is self._applicant:
                self._applicant = None
            case Changed():
                self._look_around()
            case _:
                pass  # of a link that is not ours any more

    def _order(
        self,
        kind: Kind,
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
        self._line.tell(Frame(Say.ORDER, rank, number, self._ordered, kind, order.at_ns), payload)
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
        self._line.tell(Frame(Say.STATE, number=self._ordered), memoryview(state))

    def _record(self) -> None:
        """Rows of safe orders are in the log; the backup need not keep them any more."""
        self._recorded_s = monotonic_s()
        if not self._rows:
            return
        for row in self._rows:
            record(self._log, row)
        self._log.flush()
        self._rows = []
        number = self._due[0].number - 1 if self._due else self._ordered
        self._line.tell(Frame(Say.RECORDED, number=number))
