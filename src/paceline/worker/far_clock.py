"""What time is it on rank 0? Hosts count from different moments, and one log needs one time."""

from paceline.clock import SystemClock


class FarClock:
    """Rank 0's clock, as seen from another host."""

    def __init__(self, ahead_ns: int) -> None:
        self._ahead_ns, self._own = ahead_ns, SystemClock()

    def now_ns(self) -> int:
        return self._own.now_ns() + self._ahead_ns

    def sleep(self, duration_s: float) -> None:
        self._own.sleep(duration_s)


def ahead_ns(*, asked_ns: int, theirs_ns: int, answered_ns: int) -> int:
    """How far the other clock is ahead of ours, if both ways took equally long."""
    return theirs_ns - (asked_ns + answered_ns) // 2
