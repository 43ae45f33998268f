"""How are processes of this machine? Read from /proc, one small file for each: this is done every second.

A process is known by its number and the moment it began: a number that is used again is
another process, and its share of time begins anew. Where there is no /proc, nobody is seen.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from paceline.clock import monotonic_s
from paceline.events.sample_rows import ProcessRow

PROC = Path("/proc")
GONE = ("Z", "X")  # it ended, and whoever began it has not looked yet
STOPPED = ("T", "t")  # by a signal, or by a debugger
# Places in /proc/PID/stat behind the command's name, which may itself hold anything.
_STATE, _USER, _SYSTEM, _BEGAN, _PAGES = 0, 11, 12, 19, 21


def has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def lives(pid: int) -> bool:
    """Where there is no /proc, nobody is known to be gone."""
    if not has_proc():
        return True
    try:
        said = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return said.rpartition(")")[2].split()[_STATE] not in GONE


class ProcessDoor:
    def __init__(self) -> None:
        self._ticks_per_s, self._page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._before: dict[int, tuple[str, float, int]] = {}  # by pid: when it began, seconds, ticks

    def look(self, at_ns: int, pids: Mapping[str, int]) -> list[ProcessRow]:
        """Of these participants, those that live."""
        rows, seen = [], {}
        for worker, pid in pids.items():
            try:
                text = (PROC / str(pid) / "stat").read_text()
            except OSError:
                continue  # it has ended
            fields = text.rpartition(")")[2].split()
            now_s, ticks = monotonic_s(), int(fields[_USER]) + int(fields[_SYSTEM])
            seen[pid] = (fields[_BEGAN], now_s, ticks)
            share = self._share(self._before.get(pid), seen[pid])
            memory = int(fields[_PAGES]) * self._page_bytes
            rows.append(ProcessRow(at_ns, worker, pid, memory, share, fields[_STATE] in STOPPED))
        self._before = seen
        return rows

    def _share(self, before: tuple[str, float, int] | None, now: tuple[str, float, int]) -> float:
        """Of one core, since the look before."""
        if before is None or before[0] != now[0] or now[1] <= before[1]:
            return 0.0
        return round((now[2] - before[2]) / self._ticks_per_s / (now[1] - before[1]), 4)
