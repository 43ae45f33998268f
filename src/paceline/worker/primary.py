"""What does the primary server of an elastic run do? It orders, tells its backup, and answers what that has.

Every order goes to the backup before it is carried out here, and nobody is
answered before it is safe (backup_line.py says when): whatever a worker was told
survives us. One thread does it all, order after order.
"""

import queue
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.checkpoints.store import to_bytes
from paceline.clock import Clock, monotonic_s
from paceline.events.log import Log
from paceline.events.schema import ServerRow
from paceline.ids import Rank
from paceline.transport import elastic_wire as wire
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
from paceline.transport.ports import Answer, Reply
from paceline.worker.backup_line import BackupLine
from paceline.worker.elastic_server import ElasticServer, Kind, Order, Verdict
from paceline.worker.place_membership import Places
from paceline.worker.saving import ServerSaver

TICK_S = 0.1
RECORD_S = 0.25
ABSENT_AFTER_S = 5.0  # as long as the first generation waits for its workers
KINDS = {
    Say.JOIN: Kind.JOINED,
    Say.PUSH: Kind.PUSHED,
    Say.PUSH_AND_STOP: Kind.PUSHED_AND_STOP,
    Say.LEAVE: Kind.GONE,
}
_REFUSALS = {Verdict.UNKNOWN: Say.UNKNOWN, Verdict.FENCED: Say.FENCED}


@dataclass(frozen=True, slots=True)
class Due:
    """What is said and recorded once order `number` is safe."""

    number: int
    answers: Sequence[tuple[int, Frame]]  # with the incarnation of whom it is for
    rows: Sequence[ServerRow] = ()


class PrimaryServer:
    def __init__(
        self,
        *,
        name: str,
        part: int,
        server: ElasticServer,
        host: ElasticHost,
        membership: Places,
        log: Log,
        saver: ServerSaver,
        clock: Clock,
        orders: int = 0,  # that the state holds already
    ) -> None:
        self._name, self._part, self._server = name, part, server
        self._host, self._membership = host, membership
        self._log, self._saver, self._clock = log, saver, clock
        self._ordered = orders
        self._due: deque[Due] = deque()
        self._asked: deque[Asked] = deque()  # they wait while a checkpoint is due
        self._talks: dict[Rank, Talk] = {}
        self._since_s: dict[Rank, float] = {}  # when a member was last heard from as such
        self._line = BackupLine(name=name, part=part, membership=membership)
        self._applicant: Link | None = None
        self._save_every = server.plan.checkpoint_every * server.plan.num_workers
        self._save_at = len(server.applied) + self._save_every
        self._began_s = self._recorded_s = monotonic_s()
        self._rows: list[ServerRow] = []  # safe, and not in the log yet
        for rank in server.members:
            self._since_s[rank] = self._began_s

    def run(self) -> None:
        """Until all work is done and every worker knows; FencedError: somebody else is primary."""
        self._membership.when_changed(lambda: self._host.heard.put(Changed()))
        self._look_around()
        while not self._is_over():
            heard = self._next()
            if heard is not None:
                self._hear(heard)
            self._release()
            self._take_in()
            self._save_if_due()
            if monotonic_s() - self._recorded_s > RECORD_S:
                self._record()
        self._record()

    def end(self) -> None:
        """The final state is on disk: the backup is not needed any more."""
        self._line.tell(Frame(Say.END, number=self._ordered))

    def _next(self) -> Heard | None:
        if self._asked and not self._is_saving:
            return self._asked.popleft()
        try:
            return self._host.heard.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _is_over(self) -> bool:
        if not self._server.is_finished or self._due or self._server.members:
            return False
        return not any(worker.role == "worker" for worker in self._membership.standing.living.values())

    def _hear(self, heard: Heard) -> None:
        match heard:
            case Asked():
                self._hear_worker(heard)
            case HungUp(talk):
                self._talks = {rank: known for rank, known in self._talks.items() if known is not talk}
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

    # Workers.

    def _hear_worker(self, asked: Asked) -> None:
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
        if verdict is Verdict.REPEAT:
            self._due.append(Due(self._ordered, self._frames(self._server.repeat(rank))))
            return
        number = frame.incarnation if kind is Kind.JOINED else frame.number
        gradient = talk.gradient if kind in (Kind.PUSHED, Kind.PUSHED_AND_STOP) else None
        self._order(kind, rank, number, gradient)

    def _order(self, kind: Kind, rank: Rank, number: int, gradient: torch.Tensor | None = None) -> None:
        order = Order(kind, rank, number, self._clock.now_ns())
        self._ordered += 1
        # Before it is carried out: that may change the gradient.
        payload = None if gradient is None else tcp_wire.bytes_of(gradient)
        self._line.tell(Frame(Say.ORDER, rank, number, self._ordered, kind, order.at_ns), payload)
        replies, rows = self._server.order(order, gradient)
        self._due.append(Due(self._ordered, self._frames(replies), rows))

    def _frames(self, replies: Sequence[Reply]) -> list[tuple[int, Frame]]:
        frames = []
        for reply in replies:
            assert isinstance(reply, Answer), "no step is made obsolete here"
            if reply.position is None:
                frames.append((0, Frame(Say.PARAMETERS, reply.rank, time=reply.version)))
            else:
                member = self._server.members[reply.rank]
                frame = Frame(
                    Say.PARAMETERS,
                    reply.rank,
                    number=member.ticket,
                    position=reply.position,
                    time=reply.version,
                )
                frames.append((member.incarnation, frame))
        return frames

    def _release(self) -> None:
        """Say and record what is safe."""
        safe = self._line.safe(self._ordered)
        while self._due and self._due[0].number <= safe:
            due = self._due.popleft()
            self._rows += due.rows
            for incarnation, frame in due.answers:
                self._answer(incarnation, frame)

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
        self._line.look()
        standing = self._membership.standing
        for rank, member in list(self._server.members.items()):
            worker = standing.living.get(f"worker-{rank}")
            is_there = worker is not None and worker.incarnation == member.incarnation
            if not is_there and standing.taken_s > self._since_s[rank]:
                self._order(Kind.GONE, rank, member.incarnation)
                if rank in self._talks:
                    self._talks.pop(rank).close()
        if self._server.expected and monotonic_s() - self._began_s > ABSENT_AFTER_S:
            for rank in sorted(self._server.expected):
                self._order(Kind.ABSENT, rank, 0)

    # The backup.

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
        state = to_bytes(self._server.whole())
        self._line.tell(Frame(Say.STATE, number=self._ordered), memoryview(state))

    # The disk.

    @property
    def _is_saving(self) -> bool:
        return self._save_every > 0 and len(self._server.applied) >= self._save_at

    def _record(self) -> None:
        """Rows of safe orders are in the log; the backup need not keep them any more."""
        self._recorded_s = monotonic_s()
        if not self._rows:
            return
        for row in self._rows:
            self._log.add_server(row)
        self._log.flush()
        self._rows = []
        number = self._due[0].number - 1 if self._due else self._ordered
        self._line.tell(Frame(Say.RECORDED, number=number))

    def _save_if_due(self) -> None:
        """Only what is safe is saved, so nothing new is begun until all is."""
        if self._is_saving and not self._due:
            self._record()
            self._saver.maybe_save()
            self._save_at = len(self._server.applied) + self._save_every
