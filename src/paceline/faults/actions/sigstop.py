"""A helper process that slows or stops a worker for a limited time, and always lets it continue.

`python -m paceline.faults.actions.sigstop PID SHARE SECONDS RUN WHO ID CYCLE` stops process PID with SIGSTOP
for this share of each cycle (1: all of it) and continues it with SIGCONT: when the time is over, when it
is asked to end, and when the process that started it is gone, which closes its stdin. While it lives, a
file in the run's folder holds its process number, so that others can end it; the run's log records that
it let go. A process that sleeps loses nothing by a stop shorter than its sleep, so the cycle must be
longer than a step of the worker.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.processes import command_line
from paceline.events.log import EventLog
from paceline.launchers.held_processes import holder_file, holder_of

MOMENT_S = 0.01  # between two looks at a process
MIN_CYCLE_S = 0.01
MAX_CYCLE_S = 1.0  # a stop must stay far below the lease, or the worker counts as lost
CYCLE_STEPS = 10  # a step of a paced run mostly sleeps: only what is stopped beyond it counts
READY_S = 10.0  # for a process to begin, or to end: on a busy machine that takes a while
PROGRAM = "paceline"
MODULE = "paceline.faults.actions.sigstop"


def begin(
    run_dir: Path,
    who: str,
    pid: int,
    *,
    share: float,
    for_s: float,
    wish: str,
    cycle_s: float = MIN_CYCLE_S,
) -> subprocess.Popen[bytes]:
    """A worker that is held already is held in this way from now on."""
    end(run_dir, who)
    args = [str(pid), f"{share:g}", f"{for_s:g}", str(run_dir), who, wish, f"{cycle_s:g}"]
    return start(run_dir, who, MODULE, args)


def cycle_for(step_s: float | None) -> float:
    """The cycle that slows steps which last this long; None: not known."""
    return min(MAX_CYCLE_S, max(MIN_CYCLE_S, CYCLE_STEPS * (step_s or 0.0)))


def start(run_dir: Path, who: str, module: str, args: list[str]) -> subprocess.Popen[bytes]:
    """Returns when others can find it: whoever lets go at once must not come too early."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    _until(lambda: holder_of(run_dir, who) == process.pid or process.poll() is not None)
    return process


def end(run_dir: Path, who: str, module: str = MODULE) -> bool:
    """Let it go on; False: nobody held it. Returns when whoever held it is gone."""
    holder = holder_of(run_dir, who)
    if holder is None:
        return False
    if module not in command_line(holder):
        holder_file(run_dir, who).unlink(missing_ok=True)  # of one that was killed
        return False
    with suppress(ProcessLookupError):
        os.kill(holder, signal.SIGTERM)
    _until(lambda: module not in command_line(holder))
    return True


def _until(is_true: Callable[[], bool]) -> None:
    deadline_s = monotonic_s() + READY_S
    while not is_true() and monotonic_s() < deadline_s:
        SystemClock().sleep(MOMENT_S)


class _EndedError(Exception):
    """Somebody wants this to end."""


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise _EndedError


@dataclass(slots=True)
class ReleaseReason:
    words: str = "its time is over"
    is_in_time: bool = False  # and nothing else ended it


@contextmanager
def registered_holder(run_dir: Path, who: str) -> Iterator[ReleaseReason]:
    """While this process holds somebody; a signal ends the block, and nothing else."""
    why = ReleaseReason()
    note = holder_file(run_dir, who)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    try:
        note.write_text(str(os.getpid()))
        yield why
    except _EndedError:
        why.words = "somebody asked for it"
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # what is left is to let go
        if holder_of(run_dir, who) == os.getpid():
            note.unlink(missing_ok=True)


def main(pid: int, share: float, for_s: float, run_dir: Path, who: str, wish: str, cycle_s: float) -> None:
    why = ReleaseReason()
    try:
        with registered_holder(run_dir, who) as why:
            if _hold(pid, share, cycle_s, monotonic_s() + for_s):
                why.words = "whoever held it is gone"
    except ProcessLookupError:
        why.words = "it has ended"
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    log_release(run_dir, who, wish, action="resume", note=f"{who} was let go: {why.words}")


def log_release(run_dir: Path, target: str, wish: str, *, action: str, note: str) -> None:
    if not run_dir.is_dir():
        return  # the run's folder is gone, and with it whoever would read this
    log = EventLog(run_dir / "events.jsonl", who="operator", clock=SystemClock())
    said = {"id": wish, "action": action, "target": target, "phase": "applied"}
    log.write("action", **said, note=note, by="paceline", source="api")
    log.close()


def _hold(pid: int, share: float, cycle_s: float, until_s: float) -> bool:
    """True: the process that started this one is gone."""
    # The name was looked up a moment ago: nothing else may be hit, should the number mean another one now.
    while (left_s := until_s - monotonic_s()) > 0 and PROGRAM in command_line(pid):
        os.kill(pid, signal.SIGSTOP)
        if is_parent_gone(min(left_s, share * cycle_s)):
            return True
        if share < 1:
            os.kill(pid, signal.SIGCONT)
            if is_parent_gone((1 - share) * cycle_s):
                return True
    return False


def is_parent_gone(wait_s: float) -> bool:
    """Was stdin closed within this time?"""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1 << 10)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        float(sys.argv[2]),
        float(sys.argv[3]),
        Path(sys.argv[4]),
        sys.argv[5],
        sys.argv[6],
        float(sys.argv[7]),
    )
