"""Requests to the Linux kernel about processes, and readings of /proc."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died between the two calls
        os._exit(1)


def cpu_ticks(pid: int) -> int:
    """CPU time that the process has used, with all its threads, in the kernel's ticks; -1 if it has ended."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else -1


def started_ticks(pid: int) -> int:
    """When it was started, in ticks since the boot; with its pid it identifies a process. -1 if it ended."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else -1


def is_stopped(pid: int) -> bool:
    """Whether it is stopped, by SIGSTOP, Ctrl-Z or a debugger."""
    return _stat(pid)[:1] in (["T"], ["t"])


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; the name before it may hold any character."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process (Linux only)."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> list[int]:
    """The processes whose parent is `pid`, with those that have ended and were not waited for."""
    return [child for child, fields in _stats() if int(fields[1]) == pid]


def kill_each(pids: list[int]) -> list[int]:
    """Kill these processes; those that this process was allowed to kill."""
    killed = []
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or has become another user's
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def members_of_session(session: int) -> list[int]:
    """The processes of a session; its id stays taken while any of them lives."""
    return [member for member, fields in _stats() if int(fields[3]) == session]


def reap() -> None:
    """Wait for the children that have ended, and for no other."""
    with suppress(ChildProcessError):  # there are none
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _stats() -> list[tuple[int, list[str]]]:
    """Every process with its `_stat`."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [(pid, fields) for pid in pids if (fields := _stat(pid))]


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def command_line(pid: int) -> str:
    """The process's command line; empty when there is no such process, or it is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
