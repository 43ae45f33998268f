"""Primary parameter server: assigns work units, keeps the workers' clocks, evaluates, and saves.

replication.py keeps it consistent with its backup; state_machine.py carries out its orders.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch

from paceline.core.clock import Clock, monotonic_s
from paceline.core.ids import Rank
from paceline.events.log import Log
from paceline.transport import elastic_wire as wire
from paceline.transport.elastic_store import ElasticHost, HostEvent, WorkerConnection, WorkerRequest
from paceline.transport.elastic_wire import Frame, MessageKind
from paceline.transport.ports import Answer, Obsolete, Reply
from paceline.worker.checkpointing import ServerSaver
from paceline.worker.evaluation import Validation
from paceline.worker.reporting import Report, ignore_report
from paceline.worker.server.membership import ServerDirectory
from paceline.worker.server.replication import DeferredOutput, ReplicatedServer
from paceline.worker.server.state_machine import ElasticServer, OrderKind, RequestVerdict

ABSENT_AFTER_S = 5.0  # equal to the first generation's wait for its workers
KINDS = {
    MessageKind.JOIN: OrderKind.JOINED,
    MessageKind.PUSH: OrderKind.PUSHED,
    MessageKind.PUSH_AND_STOP: OrderKind.PUSHED_AND_STOP,
    MessageKind.LEAVE: OrderKind.GONE,
    MessageKind.AGAIN: OrderKind.AGAIN,
}
_REFUSALS = {RequestVerdict.UNKNOWN: MessageKind.UNKNOWN, RequestVerdict.FENCED: MessageKind.FENCED}


class PrimaryServer(ReplicatedServer):
    def __init__(
        self,
        *,
        name: str,
        server: ElasticServer,
        host: ElasticHost,
        membership: ServerDirectory,
        log: Log,
        saver: ServerSaver,
        clock: Clock,
        validation: Validation | None = None,  # None: the run is evaluated at its end only
        report: Callable[[Report], None] = ignore_report,
        orders: int = 0,  # that the state holds already
        newest_ns: int = 0,
        await_recorded: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            name=name,
            machine=server,
            host=host,
            membership=membership,
            log=log,
            clock=clock,
            orders=orders,
            newest_ns=newest_ns,
            await_recorded=await_recorded,
        )
        self._server = server
        self._saver = saver
        self._validation = validation
        self._report = report
        self._requests: deque[WorkerRequest] = deque()  # they wait while a checkpoint is due
        self._connections: dict[Rank, WorkerConnection] = {}
        self._since_s: dict[Rank, float] = {}  # when a member last sent a request
        # Workers that have not joined yet, if they go on with the trained model: scripts do at their end.
        self._absent = set(server.expected) if server.hands_out_end else set()
        self._save_every = server.plan.checkpoint_every * server.plan.num_workers
        self._save_at = len(server.applied) + self._save_every
        for rank in server.members:
            self._since_s[rank] = self._began_s

    def run(self) -> None:
        self._on_backup("")
        if self._server.evaluations is not None:
            self._server.evaluations.begin()
        self._evaluate()  # the former primary may have been lost before it
        super().run()

    def _next(self) -> HostEvent | None:
        if self._requests and not self._is_saving:
            return self._requests.popleft()
        return super()._next()

    def _is_over(self) -> bool:
        if not self._server.is_finished or self._due or self._server.members:
            return False
        view = self._membership.view
        if self._absent and not view.is_alone and monotonic_s() - self._began_s < self._server.plan.timeout_s:
            return False
        return view.is_alone or not any(worker.role == "worker" for worker in view.living.values())

    # Workers.

    def _handle_request(self, request: WorkerRequest) -> None:
        if self._is_saving:
            self._requests.append(request)
            return
        connection = request.connection
        frame = request.frame
        rank = Rank(frame.rank)
        kind = KINDS[frame.kind]
        verdict = self._server.weigh(kind, rank, frame.incarnation, frame.number)
        if verdict in _REFUSALS:
            connection.answer(Frame(_REFUSALS[verdict], rank))
            return
        connection.incarnation = frame.incarnation
        former = self._connections.get(rank)
        if former is not None and former is not connection:
            former.close()
        self._connections[rank] = connection
        self._since_s[rank] = monotonic_s()
        self._absent.discard(rank)
        if verdict is RequestVerdict.REPEAT:
            self._due.append(DeferredOutput(self._ordered, self._answers(self._server.repeat(rank))))
            return
        number = frame.incarnation if kind is OrderKind.JOINED else frame.number
        gradient = connection.gradient if kind in (OrderKind.PUSHED, OrderKind.PUSHED_AND_STOP) else None
        self._carry_out(kind, rank, number, gradient)

    def _on_disconnect(self, connection: WorkerConnection) -> None:
        self._connections = {
            rank: known for rank, known in self._connections.items() if known is not connection
        }

    def _carry_out(
        self, kind: OrderKind, rank: Rank, number: int, gradient: torch.Tensor | None = None
    ) -> None:
        replies, rows = self._order(kind, rank, number, gradient)
        self._due.append(DeferredOutput(self._ordered, self._answers(replies), rows))
        self._evaluate()

    def _evaluate(self) -> None:
        """Evaluate before another order, so that these are the parameters of the step.

        The result is an order too: the backup stores it and decides the same. If the primary is lost before
        that, the next one evaluates.
        """
        record = self._server.evaluations
        at = self._server.steps_done
        if record is None or self._validation is None or not record.is_due(at):
            return
        entry = record.measure(at, self._validation)
        send_report = partial(self._report, record.row(entry).report())
        replies, rows = self._order(OrderKind.EVALUATED, Rank(0), 0, text=json.dumps(entry))
        self._due.append(DeferredOutput(self._ordered, [send_report, *self._answers(replies)], rows))

    def _answers(self, replies: Sequence[Reply]) -> list[partial[None]]:
        answers = [partial(self._answer, *args) for args in self._frames(replies)]
        return [*(partial(self._interrupt, *args) for args in self._interrupts(replies)), *answers]

    def _interrupts(self, replies: Sequence[Reply]) -> list[tuple[int, Frame]]:
        """Frames to workers whose current work unit is obsolete."""
        late = [
            (reply.rank, self._server.members[reply.rank]) for reply in replies if isinstance(reply, Obsolete)
        ]
        return [
            (member.incarnation, Frame(MessageKind.OBSOLETE, rank, number=member.ticket))
            for rank, member in late
        ]

    def _interrupt(self, incarnation: int, frame: Frame) -> None:
        connection = self._connections.get(Rank(frame.rank))
        if connection is not None and connection.incarnation == incarnation:
            connection.interrupt(frame)  # a worker that misses it pushes in vain

    def _frames(self, replies: Sequence[Reply]) -> list[tuple[int, Frame]]:
        frames = []
        for reply in replies:
            if not isinstance(reply, Answer):
                continue
            if reply.position is None:
                frames.append((0, Frame(MessageKind.PARAMETERS, reply.rank, time=reply.version)))
            else:
                member = self._server.members[reply.rank]
                frame = Frame(
                    MessageKind.PARAMETERS,
                    reply.rank,
                    number=member.ticket,
                    position=reply.position,
                    time=reply.version,
                )
                frames.append((member.incarnation, frame))
        return frames

    def _answer(self, incarnation: int, frame: Frame) -> None:
        rank = Rank(frame.rank)
        connection = self._connections.get(rank)
        if connection is None:
            return  # it repeats the request when it is back
        if frame.position == wire.NO_SHARE:
            connection.answer(frame, self._server.parameters_of(rank) if self._server.hands_out_end else None)
        elif connection.incarnation == incarnation and connection.answered < frame.number:
            connection.answered = frame.number
            connection.answer(frame, self._server.parameters_of(rank))

    def _on_backup(self, name: str) -> None:
        self._report({"ev": "backup", "backup": name})  # the launcher keeps it off this host

    # The coordinator.

    def _check_membership(self) -> None:
        """Check that this server is still primary, and drop workers that are lost."""
        super()._check_membership()
        view = self._membership.view
        for rank, member in list(self._server.members.items()):
            worker = view.living.get(f"worker-{rank}")
            is_there = worker is not None and worker.incarnation == member.incarnation
            if not is_there and view.taken_s > self._since_s[rank]:
                self._carry_out(OrderKind.GONE, rank, member.incarnation)
                if rank in self._connections:
                    self._connections.pop(rank).close()
        if self._server.expected and monotonic_s() - self._began_s > ABSENT_AFTER_S:
            for rank in sorted(self._server.expected):
                self._carry_out(OrderKind.ABSENT, rank, 0)

    # The disk.

    @property
    def _is_saving(self) -> bool:
        return self._save_every > 0 and len(self._server.applied) >= self._save_at

    def _between_orders(self) -> None:
        """Only safe orders are saved, so no new order begins until all are safe."""
        if self._is_saving and not self._due:
            self._record()
            self._saver.maybe_save()
            self._save_at = len(self._server.applied) + self._save_every
