"""What can a worker ask of a parameter server? The same four requests on every adapter."""

from collections.abc import Sequence
from enum import IntEnum

from paceline.ids import Clock, Rank
from paceline.transport.ports import Answer, StoreHandler


class Request(IntEnum):
    JOIN = 1
    PUSH = 2
    PUSH_AND_LEAVE = 3
    LEAVE = 4

    @property
    def is_last(self) -> bool:
        return self in (Request.PUSH_AND_LEAVE, Request.LEAVE)

    @property
    def has_gradient(self) -> bool:
        return self in (Request.PUSH, Request.PUSH_AND_LEAVE)


def dispatch(handler: StoreHandler, rank: Rank, request: Request, clock: Clock) -> Sequence[Answer]:
    match request:
        case Request.JOIN:
            return handler.join(rank, clock)
        case Request.LEAVE:
            return handler.leave(rank)
        case Request.PUSH | Request.PUSH_AND_LEAVE:
            return handler.push(rank, leaving=request.is_last)
