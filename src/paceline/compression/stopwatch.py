"""How long did coding take, apart from waiting and moving?"""

from paceline.clock import Clock
from paceline.transport.ports import Traffic


class Stopwatch:
    """`with watch:` around what is coding; `traffic()` gives the sum and begins anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent_ns = 0
        self._started_ns = 0

    def __enter__(self) -> None:
        self._started_ns = self._clock.now_ns()

    def __exit__(self, *_: object) -> None:
        self._spent_ns += self._clock.now_ns() - self._started_ns

    def traffic(self) -> Traffic:
        spent_ns, self._spent_ns = self._spent_ns, 0
        return Traffic(codec_ns=spent_ns)
