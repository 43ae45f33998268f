"""Dashboard process of `train --dashboard`, and the settings of a dashboard.

The run never waits for it: the dashboard reads the event log like any other reader and ends with the command.
If it cannot start, that is reported and training continues.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LogFunction = Callable[[str], None]
SHUTDOWN_TIMEOUT_S = 10.0


@contextmanager
def dashboard_process(run_dir: Path, log: LogFunction) -> Iterator[None]:
    run_dir.mkdir(parents=True, exist_ok=True)  # the dashboard needs an existing folder
    process = subprocess.Popen(
        [
            "nice",
            "-n",
            "5",
            sys.executable,
            "-m",
            "paceline",
            "dashboard",
            str(run_dir),
            "--json",
            "--beside",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C in the terminal must reach only the command
    )
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    listener = threading.Thread(target=_listen, args=(process.stdout, log), name="dashboard", daemon=True)
    listener.start()
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(SHUTDOWN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join()
        log(f"replay:  paceline dashboard {run_dir} --replay")


def _listen(lines: IO[str], log: LogFunction) -> None:
    with lines:
        for line in lines:
            message = json.loads(line)
            if message["ok"]:
                log(f"dashboard: {message['data']['url']}")
            else:
                problem = message["error"]["problems"][0]
                log(f"no dashboard: {problem['what']}; {problem['hint']}")


PORT = 8642
PAGE = Path(__file__).parent / "page"  # built by dashboard/build.py; not in the repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    place: Path  # a run's folder, or a folder of runs
    token: str
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free port
    names: tuple[str, ...] = ()  # further allowed host names
    is_replay: bool = False
    is_readonly: bool = False
    allows_faults: bool | None = None  # None: only in runs of this machine
    rules: Path | None = None
    stops_with_stdin: bool = False
    page: Path = PAGE
