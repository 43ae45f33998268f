"""What does the primary server of part 0 do? It hands out shares, keeps clocks, and saves.

How it keeps to its backup is in guarded.py; what an order does in elastic_server.py.
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
from paceline.transport.ports import Obsolete, Reply
from paceline.worker.checkpointing import ServerSaver
from paceline.worker.evaluation import Validation
from paceline.worker.reporting import Report, ignore_report
from paceline.worker.server.membership import ServerDirectory
from paceline.worker.server.replication import DeferredOutput, ReplicatedServer
from paceline.worker.server.state_machine import ElasticServer, OrderKind, RequestVerdict

ABSENT_AFTER_S = 5.0  # as long as the first generation waits for its workers
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
    ) -> None:
        super().__init__(
            name=name,
            machine=server,
            host=host,
            membership=membership,
            log=log,
            clock=clock,
            orders=orders,
        )
        self._server, self._saver = server, saver
        self._validation, self._report = validation, report
        self._asked: deque[WorkerRequest] = deque()  # they wait while a checkpoint is due
        self._talks: dict[Rank, WorkerConnection] = {}
        self._since_s: dict[Rank, float] = {}  # when a member was last heard from as such
        self._save_every = server.plan.checkpoint_every * server.plan.num_workers
        self._save_at = len(server.applied) + self._save_every
        for rank in server.members:
            self._since_s[rank] = self._began_s

    def run(self) -> None:
        if self._server.evaluations is not None:
            self._server.evaluations.begin()
        self._evaluate()  # the former primary may not have come to it
        super().run()

    def _next(self) -> HostEvent | None:
        if self._asked and not self._is_saving:
            return self._asked.popleft()
        return super()._next()

    def _is_over(self) -> bool:
        if not self._server.is_finished or self._due or self._server.members:
            return False
        standing = self._membership.standing
        return standing.is_alone or not any(worker.role == "worker" for worker in standing.living.values())

    # Workers.

    def _hear_worker(self, asked: WorkerRequest) -> None:
        if self._is_saving:
            self._asked.append(asked)
            return
        talk, frame = asked.talk, asked.frame
        rank, kind = Rank(frame.rank), KINDS[frame.say]
        verdict = self._server.weigh(kind, rank, frame.incarnation, frame.number)
        if verdict in _REFUSALS:
            talk.answer(Frame(_REFUSALS[verdict], rank))
            return
        talk.incarnation = frame.incarnation
        former = self._talks.get(rank)
        if former is not None and former is not talk:
            former.close()
        self._talks[rank], self._since_s[rank] = talk, monotonic_s()
        if verdict is RequestVerdict.REPEAT:
            self._due.append(DeferredOutput(self._ordered, self._answers(self._server.repeat(rank))))
            return
        number = frame.incarnation if kind is OrderKind.JOINED else frame.number
        gradient = talk.gradient if kind in (OrderKind.PUSHED, OrderKind.PUSHED_AND_STOP) else None
        self._carry_out(kind, rank, number, gradient)

    def _hung_up(self, talk: WorkerConnection) -> None:
        self._talks = {rank: known for rank, known in self._talks.items() if known is not talk}

    def _carry_out(
        self, kind: OrderKind, rank: Rank, number: int, gradient: torch.Tensor | None = None
    ) -> None:
        replies, rows = self._order(kind, rank, number, gradient)
        self._due.append(DeferredOutput(self._ordered, self._answers(replies), rows))
        self._evaluate()

    def _evaluate(self) -> None:
        """Before another order, so that these are the parameters of the step.

        What was measured is an order too: the backup remembers it and decides the same. A primary that is
        lost before leaves it to the next one.
        """
        record, at = self._server.evaluations, self._server.steps_done
        if record is None or self._validation is None or not record.is_due(at):
            return
        entry = record.measure(at, self._validation)
        told = partial(self._report, record.row(entry).report())
        replies, rows = self._order(OrderKind.EVALUATED, Rank(0), 0, text=json.dumps(entry))
        self._due.append(DeferredOutput(self._ordered, [told, *self._answers(replies)], rows))

    def _answers(self, replies: Sequence[Reply]) -> list[partial[None]]:
        answers = [partial(self._answer, *found) for found in self._frames(replies)]
        return [*(partial(self._interrupt, *found) for found in self._words(replies)), *answers]

    def _words(self, replies: Sequence[Reply]) -> list[tuple[int, Frame]]:
        """To those who compute what is not wanted any more."""
        late = [
            (reply.rank, self._server.members[reply.rank]) for reply in replies if isinstance(reply, Obsolete)
        ]
        return [
            (member.incarnation, Frame(MessageKind.OBSOLETE, rank, number=member.ticket))
            for rank, member in late
        ]

    def _interrupt(self, incarnation: int, word: Frame) -> None:
        talk = self._talks.get(Rank(word.rank))
        if talk is not None and talk.incarnation == incarnation:
            talk.interrupt(word)  # who does not hear it pushes in vain

    def _frames(self, replies: Sequence[Reply]) -> list[tuple[int, Frame]]:
        frames = []
        for reply in replies:
            if isinstance(reply, Obsolete):
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
        talk = self._talks.get(rank)
        if talk is None:
            return  # when it comes back it asks again
        if frame.position == wire.NO_SHARE:
            talk.answer(frame)
        elif talk.incarnation == incarnation and talk.answered < frame.number:
            talk.answered = frame.number
            talk.answer(frame, self._server.parameters_of(rank))

    # The coordinator.

    def _look_around(self) -> None:
        """Are we still primary, and who of our workers lives?"""
        super()._look_around()
        standing = self._membership.standing
        for rank, member in list(self._server.members.items()):
            worker = standing.living.get(f"worker-{rank}")
            is_there = worker is not None and worker.incarnation == member.incarnation
            if not is_there and standing.taken_s > self._since_s[rank]:
                self._carry_out(OrderKind.GONE, rank, member.incarnation)
                if rank in self._talks:
                    self._talks.pop(rank).close()
        if self._server.expected and monotonic_s() - self._began_s > ABSENT_AFTER_S:
            for rank in sorted(self._server.expected):
                self._carry_out(OrderKind.ABSENT, rank, 0)

    # The disk.

    @property
    def _is_saving(self) -> bool:
        return self._save_every > 0 and len(self._server.applied) >= self._save_at

    def _between_orders(self) -> None:
        """Only what is safe is saved, so nothing new is begun until all is."""
        if self._is_saving and not self._due:
            self._record()
            self._saver.maybe_save()
            self._save_at = len(self._server.applied) + self._save_every
