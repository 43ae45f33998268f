"""How is a worker of a run on this machine paused or killed by hand? By a signal, told to the log."""

import os
import signal
from pathlib import Path

from paceline.clock import SystemClock
from paceline.errors import PacelineError
from paceline.events.log import EventLog
from paceline.plan.codec import Json
from paceline.watch.host_door import HostDoor


class NotHereError(PacelineError):
    """The worker's process cannot be signalled from here."""


def pause_or_resume(run_dir: Path, told: dict[str, Json], worker: str) -> str:
    """What was done, in words."""
    one = _worker(told, worker)
    if one["state"] == "paused":
        _strike(run_dir, one, signal.SIGCONT, "resume")
        return f"{worker} goes on"
    _strike(run_dir, one, signal.SIGSTOP, "pause")
    return f"{worker} is paused; p lets it go on"


def kill(run_dir: Path, told: dict[str, Json], worker: str) -> str:
    _strike(run_dir, _worker(told, worker), signal.SIGKILL, "kill")
    return f"{worker} was killed"


def _worker(told: dict[str, Json], name: str) -> dict[str, Json]:
    workers = told["workers"]
    assert isinstance(workers, list), "a snapshot lists its workers"
    found = next((w for w in workers if isinstance(w, dict) and w["worker"] == name), None)
    run = told["run"]
    assert isinstance(run, dict), "a snapshot tells of its run"
    is_over = told["state"] in ("finished", "stopped", "failed")
    if found is None or is_over or found["state"] in ("lost", "finished") or found["pid"] is None:
        raise NotHereError(f"{name} is not at work", "choose one that is")
    if run["launcher"] != "local" or found["node"] not in (None, HostDoor(Path.cwd()).node):
        raise NotHereError(f"{name} does not run on this machine", f"do it on {found['node'] or 'its own'}")
    return found


def _strike(run_dir: Path, worker: dict[str, Json], number: signal.Signals, fault: str) -> None:
    log = EventLog(run_dir / "events.jsonl", who="operator", clock=SystemClock())
    try:
        os.kill(int(str(worker["pid"])), number)
        log.write("fault_injected", fault=fault, target=str(worker["worker"]), by="top", until_ns=None)
    except OSError as error:
        raise NotHereError(
            f"{worker['worker']} cannot be signalled: {error.strerror}", "is it yours?"
        ) from error
    finally:
        log.close()
