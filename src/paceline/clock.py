"""What time is it? The only reader of time, so that everything else can be told.

`SystemClock` is the real one. Virtual clusters (laws, tests) pass their own.
"""

import time
from contextlib import suppress
from pathlib import Path
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


def boot_id() -> str:
    """The same in all processes on this host since it was started; their clocks are then the same too."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
