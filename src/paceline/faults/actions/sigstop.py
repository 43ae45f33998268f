"""A helper process that slows or stops a worker for a limited time, and always lets it continue.

`python -m paceline.faults.actions.sigstop PID SHARE SECONDS RUN WHO ID CYCLE` stops process PID with SIGSTOP
for this share of each cycle (1: all of it) and continues it with SIGCONT: when the time is over, when it
is requested to end, and when the process that started it has ended, which closes its stdin. While it runs,
a file in the run's folder holds its pid, so that others can end it; the run's log records the release. A
process that sleeps loses nothing by a stop shorter than its sleep, so the cycle must be
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

MOMENT_S = 0.01  # between two checks of a process
MIN_CYCLE_S = 0.01
MAX_CYCLE_S = 1.0  # a stop must stay far below the lease, or the worker counts as lost
CYCLE_STEPS = 10  # a step of a paced run mostly sleeps: only what is stopped beyond it counts
READY_S = 10.0  # for a process to begin, or to end: on a busy machine that takes a while
PROGRAM = "paceline"
MODULE = "paceline.faults.actions.sigstop"


def begin(
    run_dir: Path,
    worker: str,
    pid: int,
    *,
    share: float,
    for_s: float,
    action_id: str,
    cycle_s: float = MIN_CYCLE_S,
) -> subprocess.Popen[bytes]:
    """Replaces a helper that already stops this worker."""
    end(run_dir, worker)
    args = [str(pid), f"{share:g}", f"{for_s:g}", str(run_dir), worker, action_id, f"{cycle_s:g}"]
    return start(run_dir, worker, MODULE, args)


def cycle_for(step_s: float | None) -> float:
    """The cycle that slows steps which last this long; None: not known."""
    return min(MAX_CYCLE_S, max(MIN_CYCLE_S, CYCLE_STEPS * (step_s or 0.0)))


def start(run_dir: Path, worker: str, module: str, args: list[str]) -> subprocess.Popen[bytes]:
    """Returns once the helper has registered, so that `end` right after it finds the helper."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    _wait_until(lambda: holder_of(run_dir, worker) == process.pid or process.poll() is not None)
    return process


def end(run_dir: Path, worker: str, module: str = MODULE) -> bool:
    """Continue the worker, and wait for its helper to exit; False: there was none."""
    holder = holder_of(run_dir, worker)
    if holder is None:
        return False
    if module not in command_line(holder):
        holder_file(run_dir, worker).unlink(missing_ok=True)  # its helper was killed
        return False
    with suppress(ProcessLookupError):
        os.kill(holder, signal.SIGTERM)
    _wait_until(lambda: module not in command_line(holder))
    return True


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline_s = monotonic_s() + READY_S
    while not is_true() and monotonic_s() < deadline_s:
        SystemClock().sleep(MOMENT_S)


class _EndedError(Exception):
    """A signal requested the end of this process."""


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise _EndedError


@dataclass(slots=True)
class ReleaseReason:
    text: str = "its duration has elapsed"
    is_in_time: bool = False  # ended by its time, not by a signal


@contextmanager
def registered_holder(run_dir: Path, worker: str) -> Iterator[ReleaseReason]:
    """Registers this process as the holder of `worker`; a signal ends the block."""
    reason = ReleaseReason()
    pid_file = holder_file(run_dir, worker)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    try:
        pid_file.write_text(str(os.getpid()))
        yield reason
    except _EndedError:
        reason.text = "it was requested"
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # cleanup must not be interrupted
        if holder_of(run_dir, worker) == os.getpid():
            pid_file.unlink(missing_ok=True)


def main(
    pid: int, share: float, for_s: float, run_dir: Path, worker: str, action_id: str, cycle_s: float
) -> None:
    reason = ReleaseReason()
    try:
        with registered_holder(run_dir, worker) as reason:
            if _hold(pid, share, cycle_s, monotonic_s() + for_s):
                reason.text = "the command that paused it has exited"
    except ProcessLookupError:
        reason.text = "it has ended"
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    log_release(run_dir, worker, action_id, action="resume", note=f"{worker} was resumed: {reason.text}")


def log_release(run_dir: Path, target: str, action_id: str, *, action: str, note: str) -> None:
    if not run_dir.is_dir():
        return  # the run's folder was removed
    log = EventLog(run_dir / "events.jsonl", who="operator", clock=SystemClock())
    fields = {"id": action_id, "action": action, "target": target, "phase": "applied"}
    log.write("action", **fields, note=note, by="paceline", source="api")
    log.close()


def _hold(pid: int, share: float, cycle_s: float, until_s: float) -> bool:
    """Stop and continue the process; True if the process that started this one has ended."""
    # The pid may have been reused since it was looked up: signal only a process of Paceline.
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
    """Whether stdin is closed within this time."""
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
