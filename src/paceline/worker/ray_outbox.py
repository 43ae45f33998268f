"""What has an actor of Ray to say that nobody has asked for yet? The launcher asks, and never waits for long.

What is urgent (a report, an error, a snapshot) ends the launcher's waiting; lines of the log and of the
record travel with whatever is said next.
"""

import io
import itertools
import json
import threading
from collections import deque
from typing import TextIO, TypeVar

from paceline.plan.codec import Json

Message = dict[str, Json]
LINGER_S = 0.25
T = TypeVar("T")


class Outbox:
    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()  # of the record
        self.text: deque[str] = deque()  # of the log
        self._changed = threading.Condition()
        self._said: list[Message] = []
        self._blobs: list[bytes] = []
        self._answers: dict[int, Message] = {}
        self._numbers = itertools.count()
        self._is_over = False

    def say(self, message: Message) -> None:
        with self._changed:
            self._said.append(message)
            self._changed.notify_all()

    def ask(self, message: Message, blob: bytes, *, timeout_s: float) -> Message:
        """What the launcher answers; ConnectionError when it does not."""
        number = next(self._numbers)
        with self._changed:
            self._said.append({**message, "number": number, "blob": len(self._blobs)})
            self._blobs.append(blob)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: number in self._answers, timeout_s):
                raise ConnectionError(f"the launcher did not take it within {timeout_s:g} s")
            return self._answers.pop(number)

    def end(self) -> None:
        """Nothing more will be said."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def take(self, answers: str) -> tuple[Message, list[bytes]]:
        """Everything so far, once something is urgent or has waited long enough; first, what was answered."""
        with self._changed:
            for answer in json.loads(answers):
                self._answers[int(answer["number"])] = answer
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._said) or self._is_over, LINGER_S)
            said: list[Json] = list(self._said)
            blobs, self._said, self._blobs = self._blobs, [], []
            is_over = self._is_over
        # After what was said: a snapshot must never be ahead of the record.
        lines = _drained(self.lines)
        events = b"".join(lines).decode()
        return {"said": said, "events": events, "log": "".join(_drained(self.text)), "over": is_over}, blobs


def _drained(found: deque[T]) -> list[T]:
    taken = []
    while found:
        taken.append(found.popleft())
    return taken


class Printed(io.TextIOBase):
    """A stdout whose text also goes to the launcher."""

    def __init__(self, before: TextIO, text: deque[str]) -> None:
        self._before, self._text = before, text

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._text.append(text)
        return self._before.write(text)

    def flush(self) -> None:
        self._before.flush()
