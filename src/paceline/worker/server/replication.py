"""Primary-backup replication: an order is sent to the backup first, and answered once it is safe.

The primary sends every order to the backup before it carries it out, and answers no worker before the order
is safe (`BackupReplicator`): every response to a worker survives the primary. One thread does it all, order
after order; connections only put events into its queue. primary.py adds the requests of workers and what the
server does then.
"""

import queue
import threading
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
    Recorded,
    WorkerConnection,
    WorkerRequest,
)
from paceline.transport.elastic_wire import Frame, MessageKind
from paceline.transport.ports import Reply
from paceline.worker.evaluation import EvaluatedRow
from paceline.worker.server.membership import RESUME, SHARD, FencedError, ServerDirectory
from paceline.worker.server.state_machine import Order, OrderKind

# The coordinator records the backup only after the backup has confirmed the state, and
# the primary stops waiting for confirmations only after the coordinator has removed the
# backup. So a backup that is promoted has everything that was ever safe, and of two
# servers that both act as primary, one has no order that becomes safe.


class BackupReplicator:
    def __init__(self, *, name: str, membership: ServerDirectory) -> None:
        self._name = name
        self._membership = membership
        self.link: BackupConnection | None = None
        self._is_guarded = False  # True: an order is safe only once the backup has confirmed it
        self._confirmed = 0

    def safe(self, ordered: int) -> int:
        """Number of safe orders among the first `ordered`."""
        if self._is_guarded:
            return self._confirmed
        return ordered if self._may_answer_alone() else 0

    def begin(self, link: BackupConnection) -> None:
        """Send everything to this server from here on; it counts once it has confirmed the state."""
        self.link = link
        self._is_guarded = False

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        if self.link is None:
            return
        try:
            self.link.send(frame, payload)
        except OSError:
            self.link.close()  # its thread reports the loss; only then does this server continue without it

    def confirm(self, number: int) -> bool:
        """Record that the backup has all orders up to `number`; whether the coordinator named it just now."""
        self._confirmed = number
        if self._is_guarded or self.link is None:
            return False
        self._is_guarded = True
        self._agree_on(self.link.name)
        return self.link is not None

    def lose(self) -> None:
        """Drop a backup whose connection is lost. It may still run, so the coordinator must agree first."""
        if self._is_guarded:
            self._agree_on("")
        self._let_go()

    def check(self) -> None:
        """FencedError unless this server is primary. Drops a backup that is no longer recorded."""
        place = self._membership.view.place
        if self._membership.is_fenced or place.primary != self._name:
            raise self._fenced(place)
        if self._is_guarded and self.link is not None and place.backup != self.link.name:
            self._let_go()

    def _let_go(self) -> None:
        if self.link is not None:
            self.link.close()
        self.link = None
        self._is_guarded = False

    def _may_answer_alone(self) -> bool:
        # Half a lease: if we stood still for longer, another may be primary by now.
        view = self._membership.view
        membership = self._membership
        place = view.placed
        own_entry = view.living.get(self._name)
        is_ours = place is not None and place.primary == self._name and not place.backup
        is_me = own_entry is not None and own_entry.incarnation == membership.number
        return is_ours and is_me and monotonic_s() - view.taken_s < membership.lease_s / 2

    def _agree_on(self, backup: str) -> None:
        """The coordinator has recorded this backup, or that there is none, when this returns."""
        while True:
            place = self._membership.view.place
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
                self._read_again()  # the place has changed meanwhile: decide again
            except UnreachableError:
                self._read_again()

    def _read_again(self) -> None:
        """Read the coordinator's view without a time limit: no decision is possible without it."""
        while True:
            try:
                self._membership.refresh()
                return
            except UnreachableError:
                if self._membership.view.is_alone:
                    raise
                if self._membership.is_fenced:
                    raise self._fenced(self._membership.view.place) from None

    def _fenced(self, place: pb.ServerPlace) -> FencedError:
        primary = place.primary or "none"
        return FencedError(
            f"{self._name} is no longer primary of part {SHARD}: {primary} is, in epoch {place.epoch}",
            "its successor has taken over; a new process starts under this name",
        )


TICK_S = 0.1
RECORD_S = 0.25
Row = ServerRow | EvaluatedRow


class StateMachine(Protocol):
    """State machine of a primary and its backup: equal orders lead to equal bits."""

    @property
    def numel(self) -> int:
        """Number of elements that a worker pushes."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    def order(
        self, order: Order, gradient: torch.Tensor | None = None
    ) -> tuple[Sequence[Reply], Sequence[Row]]:
        """Carry it out; the replies, and the rows to record."""
        ...

    def whole(self) -> Snapshot: ...

    def take_whole(self, saved: Snapshot) -> None: ...


@dataclass(frozen=True, slots=True)
class DeferredOutput:
    """Answers and rows that are released once order `number` is safe."""

    number: int
    answers: Sequence[Callable[[], None]]
    rows: Sequence[Row] = ()


def record_row(log: Log, row: Row) -> None:
    if isinstance(row, EvaluatedRow):
        row.write(log)
    else:
        log.add_server(row)


class Recorder:
    """Waits in a thread until the run folder has the rows of orders, and reports that as an event."""

    def __init__(self, await_recorded: Callable[[], None], events: "queue.SimpleQueue[HostEvent]") -> None:
        self._await_recorded = await_recorded
        self._events = events
        self._numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._wait, name="recorder", daemon=True).start()

    def record(self, number: int) -> None:
        """The rows of all orders up to this number have been flushed."""
        self._numbers.put(number)

    def _wait(self) -> None:
        while True:
            number = self._numbers.get()
            while not self._numbers.empty():  # one wait for all that have been flushed
                number = self._numbers.get()
            try:
                self._await_recorded()
            except OSError as error:  # the backup keeps the rows; the agent ends this server
                print(f"whether the run folder has the newest rows is unknown: {error}", flush=True)
                continue
            self._events.put(Recorded(number))


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
        newest_ns: int = 0,  # the time of the newest of them
        await_recorded: Callable[[], None] | None = None,
    ) -> None:
        """`await_recorded`: returns once what was flushed to the log is in the run folder; None: it is."""
        self._name = name
        self._machine = machine
        self._host = host
        self._membership = membership
        self._log = log
        self._clock = clock
        self._ordered = orders
        self._newest_ns = newest_ns
        self._recorder = None if await_recorded is None else Recorder(await_recorded, host.events)
        self._due: deque[DeferredOutput] = deque()
        self._backup = BackupReplicator(name=name, membership=membership)
        self._applicant: BackupConnection | None = None
        self._began_s = self._recorded_s = monotonic_s()
        self._rows: list[Row] = []  # safe, and not in the log yet

    def run(self) -> None:
        """Run until all work is done and all workers answered; FencedError if another server is primary."""
        self._membership.when_changed(lambda: self._host.events.put(MembershipChanged()))
        self._check_membership()
        while not self._is_over():
            event = self._next()
            if event is not None:
                self._handle_event(event)
            self._release()
            if self._due and self._backup.link is None and self._membership.view.is_alone:
                message = f"{self._name} has no backup, and the coordinator is unreachable"
                raise UnreachableError(message, RESUME)  # another primary cannot be ruled out
            self._take_in()
            self._between_orders()
            if monotonic_s() - self._recorded_s > RECORD_S:
                self._record()
        self._record()

    def end(self) -> None:
        """The final state is on disk: the backup is no longer needed."""
        self._backup.send(Frame(MessageKind.END, number=self._ordered))

    @abstractmethod
    def _is_over(self) -> bool: ...

    @abstractmethod
    def _handle_request(self, request: WorkerRequest) -> None: ...

    def _on_disconnect(self, connection: WorkerConnection) -> None:
        return  # its worker repeats the request when it is back

    def _between_orders(self) -> None:
        return

    def _on_backup(self, name: str) -> None:
        return  # it follows, and the coordinator has agreed

    def _check_membership(self) -> None:
        """Check that this server is still primary."""
        self._backup.check()

    def _next(self) -> HostEvent | None:
        try:
            return self._host.events.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _handle_event(self, event: HostEvent) -> None:
        match event:
            case WorkerRequest():
                self._handle_request(event)
            case Disconnected(connection):
                self._on_disconnect(connection)
            case BackupApplied(link):
                if self._applicant is not None:
                    self._applicant.close()
                self._applicant = link
            case Acknowledged(link, number) if link is self._backup.link:
                if self._backup.confirm(number):
                    self._on_backup(link.name)
                    epoch = self._membership.view.place.epoch
                    self._log.write("backup_placed", part=SHARD, backup=link.name, epoch=epoch)
            case BackupLost(link) if link is self._backup.link:
                self._backup.lose()
            case BackupLost(link) if link is self._applicant:
                self._applicant = None
            case MembershipChanged():
                self._check_membership()
            case Recorded(number):
                self._on_recorded(number)
            case _:
                pass  # message of a link that is no longer in use

    def _order(
        self,
        kind: OrderKind,
        rank: Rank,
        number: int,
        gradient: torch.Tensor | None = None,
        text: str = "",
    ) -> tuple[Sequence[Reply], Sequence[Row]]:
        """Replicate an order, then carry it out. The caller queues the output that is due when it is safe."""
        # A reader sorts rows by time; clocks of two primaries on two hosts differ a little.
        self._newest_ns = max(self._clock.now_ns(), self._newest_ns + 1)
        order = Order(kind, rank, number, self._newest_ns, text)
        self._ordered += 1
        # Sent before the order is carried out, which may change the gradient.
        payload = memoryview(text.encode()) if text else None
        if gradient is not None:
            payload = tcp_wire.bytes_of(gradient)
        self._backup.send(Frame(MessageKind.ORDER, rank, number, self._ordered, kind, order.at_ns), payload)
        return self._machine.order(order, gradient)

    def _release(self) -> None:
        """Send and record the output of safe orders."""
        safe = self._backup.safe(self._ordered)
        while self._due and self._due[0].number <= safe:
            due = self._due.popleft()
            self._rows += due.rows
            for answer in due.answers:
                answer()

    def _take_in(self) -> None:
        """Accept a server as backup: it gets the whole state, and every order from here on."""
        if self._applicant is None:
            return
        if self._backup.link is not None:
            self._backup.lose()
        self._release()
        if self._due:
            return  # rows that are not safe yet would be lost with this server: accept it later
        self._record()
        link = self._applicant
        self._applicant = None
        self._backup.begin(link)
        state = to_bytes(self._machine.whole())
        frame = Frame(MessageKind.STATE, number=self._ordered, time=self._newest_ns)
        self._backup.send(frame, memoryview(state))

    def _record(self) -> None:
        """Rows of safe orders are in the log: the backup may drop them."""
        self._recorded_s = monotonic_s()
        if not self._rows:
            return
        for row in self._rows:
            record_row(self._log, row)
        self._log.flush()
        self._rows = []
        number = self._due[0].number - 1 if self._due else self._ordered
        if self._recorder is None:
            self._on_recorded(number)
        else:
            self._recorder.record(number)

    def _on_recorded(self, number: int) -> None:
        self._backup.send(Frame(MessageKind.RECORDED, number=number))
