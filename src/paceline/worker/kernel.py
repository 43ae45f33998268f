"""Requests to the kernel: die with the parent, and what /proc says of a child."""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """After this, the kernel kills the process when its parent ends (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died between the two calls
        os._exit(1)


def cpu_ticks(pid: int) -> int:
    """CPU time that the process has used, with all its threads, in the kernel's ticks; -1: it is gone."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else -1


def is_stopped(pid: int) -> bool:
    """By SIGSTOP, Ctrl-Z or a debugger."""
    return _stat(pid)[:1] in (["T"], ["t"])


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; the name before it may hold any character."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
