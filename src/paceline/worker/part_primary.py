"""What does the primary server of a part do that hands out no shares? It applies, and lets read.

A push is confirmed once the backup has it; a share that the part has already is
confirmed at once. Reading is an order too, although it changes nothing: a former
primary that does not know that it is one gets nothing confirmed, and so nobody
reads what is out of date. A worker that was given up changes nothing any more.
"""

from functools import partial

import torch

from paceline.checkpoints.store import to_bytes
from paceline.clock import Clock
from paceline.coordinator.client import UnreachableError
from paceline.events.log import Log
from paceline.ids import Rank
from paceline.transport.elastic_host import Asked, ElasticHost, Talk
from paceline.transport.elastic_wire import Frame, Say
from paceline.worker.elastic_server import Kind
from paceline.worker.guarded import Due, GuardedServer
from paceline.worker.part_server import PartServer
from paceline.worker.place_membership import Places


class PartPrimary(GuardedServer):
    def __init__(
        self,
        *,
        name: str,
        server: PartServer,
        host: ElasticHost,
        membership: Places,
        log: Log,
        clock: Clock,
        orders: int = 0,  # that the state holds already
    ) -> None:
        super().__init__(
            name=name,
            part=server.part,
            machine=server,
            host=host,
            membership=membership,
            log=log,
            clock=clock,
            orders=orders,
        )
        self._server = server

    def _is_over(self) -> bool:
        """Part 0 has finished; whoever was answered by it needs us no more."""
        return self._membership.standing.is_done and not self._due

    def _hear_worker(self, asked: Asked) -> None:
        talk, frame, rank = asked.talk, asked.frame, Rank(asked.frame.rank)
        match frame.say:
            case Say.PUSH:
                self._push(talk, frame)
            case Say.PULL:
                self._order(Kind.READ, rank, 0)
                told = Frame(Say.PARAMETERS, rank, time=self._server.version)
                self._answer_when_safe(talk, told, self._server.parameters.clone())
            case Say.GATHER:
                self._order(Kind.READ, rank, 0)
                state = torch.frombuffer(bytearray(to_bytes(self._server.snapshot())), dtype=torch.uint8)
                answer = partial(self._hand_over, talk, Frame(Say.STATE, number=self._ordered), state)
                self._due.append(Due(self._ordered, [answer]))
            case Say.LEAVE:
                pass
            case _:
                talk.close()  # it takes us for part 0

    def _push(self, talk: Talk, frame: Frame) -> None:
        rank, share = Rank(frame.rank), frame.position
        if share in self._server.applied:
            self._answer_when_safe(talk, Frame(Say.APPLIED, rank, position=share))
            return
        try:
            is_member = self._is_member(rank, frame.incarnation)
        except UnreachableError:
            talk.close()  # nobody knows; it will ask again
            return
        if not is_member:
            talk.answer(Frame(Say.FENCED, rank))
            return
        _, rows = self._order(Kind.PUSHED, rank, share, talk.gradient)
        answer = partial(talk.answer, Frame(Say.APPLIED, rank, position=share))
        self._due.append(Due(self._ordered, [answer], rows))

    def _hand_over(self, talk: Talk, frame: Frame, state: torch.Tensor) -> None:
        self._record()  # first: a checkpoint must never be ahead of the log
        talk.answer(frame, state)

    def _answer_when_safe(self, talk: Talk, frame: Frame, vector: torch.Tensor | None = None) -> None:
        self._due.append(Due(self._ordered, [partial(talk.answer, frame, vector)]))

    def _is_member(self, rank: Rank, incarnation: int) -> bool:
        def lives() -> bool:
            worker = self._membership.standing.living.get(f"worker-{rank}")
            return worker is not None and worker.incarnation == incarnation

        if not lives():
            self._membership.look()  # it may have come a moment ago
        return lives()
