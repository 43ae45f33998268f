"""What time is it? The only reader of time, so that everything else can be told.

`SystemClock` is the real one. Virtual clusters (laws, tests) pass their own.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Monotonic nanoseconds; only differences mean anything."""
        ...

    def sleep(self, duration_s: float) -> None: ...


class SystemClock:
    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def sleep(self, duration_s: float) -> None:
        if duration_s > 0:
            time.sleep(duration_s)


def unix_now_s() -> float:
    """Wall-clock seconds, for stamps that people and other machines read."""
    return time.time()


def monotonic_s() -> float:
    """Seconds for deadlines in shells that talk to the operating system."""
    return time.monotonic()
