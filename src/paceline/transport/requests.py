"""What can a worker ask of a parameter server? The same five requests on every adapter."""

from collections.abc import Sequence
from enum import IntEnum

from paceline.ids import Clock, Rank
from paceline.transport.ports import Reply, StoreHandler


class Request(IntEnum):
    JOIN = 1
    PUSH = 2
    PUSH_AND_STOP = 3
    LEAVE = 4
    AGAIN = 5

    @property
    def has_gradient(self) -> bool:
        return self in (Request.PUSH, Request.PUSH_AND_STOP)


def dispatch(handler: StoreHandler, rank: Rank, request: Request, clock: Clock) -> Sequence[Reply]:
    match request:
        case Request.JOIN:
            return handler.join(rank, clock)
        case Request.LEAVE:
            return handler.leave(rank)
        case Request.PUSH | Request.PUSH_AND_STOP:
            return handler.push(rank, wants_stop=request is Request.PUSH_AND_STOP)
        case Request.AGAIN:
            return handler.again(rank)
