"""Clocks: the only reader of time, and time limits that exclude times in which the process was stopped.

`SystemClock` is the real one. Virtual clusters (laws, tests) pass their own.

A process that was stopped (Ctrl-Z, SIGSTOP, `docker pause`) or suspended with its machine has
received nothing meanwhile, so that time proves nothing about its peers. `Attention` records since when
a process has run without a gap; `Patience` is a time limit that excludes gaps. Both compare two
readings of the clocks. See docs/concepts/generations.md.
"""

import math
import time
from collections.abc import Callable
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


def boottime_s() -> float:
    """Like `monotonic_s`, but it also advances while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StandstillDetector:
    """Since when this process has read its clocks without a gap.

    `update` is called at least every `slack_s` while the process runs. A longer time between two calls, by
    either clock, was a standstill: of the process, of its machine, or of the thread that reads them.
    """

    def __init__(self, slack_s: float) -> None:
        self._slack_s = slack_s
        self._last_read: tuple[float, float] | None = None
        self.since_s = -math.inf  # on the first clock; no gap so far
        self.gap_s = 0.0  # how long the last standstill was

    def update(self, now_s: float, boottime_s: float) -> float:
        """`since_s` as of now."""
        if self._last_read is not None:
            gap_s = max(now_s - self._last_read[0], boottime_s - self._last_read[1])
            if gap_s > self._slack_s:
                self.since_s = now_s
                self.gap_s = gap_s
        self._last_read = (now_s, boottime_s)
        return self.since_s


class ActiveTimeout:
    """A time limit for a peer's answer, which only time that this process has run uses up.

    A wait is cut into pieces of at most `LOOK_S`. A piece that took longer than `gap_s` was a standstill,
    after which the whole limit is granted again.
    """

    LOOK_S = 0.5

    def __init__(
        self, limit_s: float, *, gap_s: float = 3.0, now_s: Callable[[], float] = monotonic_s
    ) -> None:
        self._limit_s = limit_s
        self._gap_s = gap_s
        self._now_s = now_s
        self._left_s = limit_s
        self._read_at_s = now_s()

    def at_most(self, limit_s: float) -> None:
        """No more than this is left from now on."""
        self._limit_s = min(self._limit_s, limit_s)
        self._left_s = min(self._left_s, limit_s)

    def next_s(self) -> float:
        """How long to wait before the next check; 0: the limit is used up."""
        now_s = self._now_s()
        spent_s = now_s - self._read_at_s
        self._read_at_s = now_s
        self._left_s = self._limit_s if spent_s > self._gap_s else self._left_s - spent_s
        return max(0.0, min(self.LOOK_S, self._left_s))


def boot_id() -> str:
    """The same in all processes on this host since it was started; their clocks are then the same too.

    A container may have a time namespace, and then clocks of its own.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {_time_namespace()}"
    return ""


def _time_namespace() -> str:
    """Empty where the kernel has none."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/time").readlink())
    return ""
