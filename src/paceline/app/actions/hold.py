"""How is a worker slowed or stopped for a while, and never for ever? By a small process that lets go.

`python -m paceline.app.actions.hold PID SHARE SECONDS RUN WHO WISH` stops process PID for
this share of each moment (1: all of it) with SIGSTOP, and lets it go on with SIGCONT: when
the time is over, when it is told to end, and when whoever started it is gone, which
closes its stdin. In the run's folder it leaves a note with its own process number as
long as it lives, so that others can end it, and in the run's log that it has let go.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from paceline.app.actions.look import command_of
from paceline.clock import SystemClock, monotonic_s
from paceline.events.log import EventLog

MOMENT_S = 0.01  # shorter than most steps, so that each of them is slower
OURS = "paceline"
MODULE = "paceline.app.actions.hold"


def begin(
    run_dir: Path, who: str, pid: int, *, share: float, for_s: float, wish: str
) -> subprocess.Popen[bytes]:
    """Whoever is held already is held in this way from now on."""
    end(run_dir, who)
    args = [str(pid), f"{share:g}", f"{for_s:g}", str(run_dir), who, wish]
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(run_dir: Path, who: str) -> bool:
    """Let it go on; False: nobody held it."""
    note = _note(run_dir, who)
    try:
        holder = int(note.read_text())
    except (OSError, ValueError):
        return False
    if MODULE not in command_of(holder):
        note.unlink(missing_ok=True)  # of one that was killed
        return False
    with suppress(ProcessLookupError):
        os.kill(holder, signal.SIGTERM)
    return True


def _note(run_dir: Path, who: str) -> Path:
    return run_dir / f".held-{who}"


class _EndedError(Exception):
    """Somebody wants this to end."""


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise _EndedError


def main(pid: int, share: float, for_s: float, run_dir: Path, who: str, wish: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    note, why = _note(run_dir, who), "its time is over"
    try:
        note.write_text(str(os.getpid()))
        if _hold(pid, share, monotonic_s() + for_s):
            why = "whoever held it is gone"
    except _EndedError:
        why = "somebody asked for it"
    except ProcessLookupError:
        why = "it has ended"
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        note.unlink(missing_ok=True)
        _tell(run_dir, who, wish, why)


def _tell(run_dir: Path, who: str, wish: str, why: str) -> None:
    log = EventLog(run_dir / "events.jsonl", who="operator", clock=SystemClock())
    said = {"id": wish, "action": "resume", "target": who, "phase": "applied"}
    log.write("action", **said, note=f"{who} was let go: {why}", by="paceline", source="api")
    log.close()


def _hold(pid: int, share: float, until_s: float) -> bool:
    """True: whoever started us is gone."""
    # The name was looked up a moment ago: nothing else may be hit, should the number mean another one now.
    while (left_s := until_s - monotonic_s()) > 0 and OURS in command_of(pid):
        os.kill(pid, signal.SIGSTOP)
        if _is_alone(min(left_s, share * MOMENT_S)):
            return True
        if share < 1:
            os.kill(pid, signal.SIGCONT)
            if _is_alone((1 - share) * MOMENT_S):
                return True
    return False


def _is_alone(wait_s: float) -> bool:
    """Was stdin closed within this time?"""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1 << 10)


if __name__ == "__main__":
    main(
        int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), sys.argv[5], sys.argv[6]
    )
