"""What waits for one viewer? At most so many messages, however slow it is; what happened is never left out.

Frames are numbers that the next frame makes old: the oldest goes when there is no
room. Events are what happened: when there is room for no more of them, all is
thrown away, and the viewer is told to look anew. Pure.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

ROOM = 64


class Kind(Enum):
    FRAME = "frame"  # new rows of steps
    VIEW = "view"  # the whole view, without what frames carry
    EVENT = "event"  # something happened
    RESET = "reset"  # look anew: GET /api/v1/snapshot


@dataclass(frozen=True, slots=True)
class Message:
    """As it goes over the wire; made once for all viewers."""

    kind: Kind
    seq: int  # bytes of the run's log that are in it, and in all before
    data: bytes

    def wire(self) -> bytes:
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.seq, self.kind.value.encode(), self.data)


class Mailbox:
    def __init__(self, wake: Callable[[], None], room: int = ROOM) -> None:
        self._waiting = deque[Message]()
        self._wake, self._room = wake, room
        self.dropped = 0

    def put(self, message: Message) -> None:
        if len(self._waiting) >= self._room and not self._drop_oldest():
            self.reset(message.seq)
        self._waiting.append(message)
        self._wake()

    def reset(self, seq: int) -> None:
        self._waiting.clear()
        self._waiting.append(Message(Kind.RESET, seq, b"{}"))
        self._wake()

    def take(self) -> list[Message]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def _drop_oldest(self) -> bool:
        """Of what may be dropped; False: there is nothing but events."""
        for position, message in enumerate(self._waiting):
            if message.kind in (Kind.FRAME, Kind.VIEW):
                del self._waiting[position]
                self.dropped += 1
                return True
        return False
