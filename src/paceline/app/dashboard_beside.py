"""How does a run get a dashboard that cannot hurt it? A process of its own that ends with the command.

Nothing of the run waits for it: it reads the run's log like anybody else. If it cannot
start, that is said, and training goes on.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

Say = Callable[[str], None]
ENDS_S = 10.0


@contextmanager
def beside(run_dir: Path, say: Say) -> Iterator[None]:
    run_dir.mkdir(parents=True, exist_ok=True)  # so that it has something to look at
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
        start_new_session=True,  # Ctrl-C in the terminal is the command's
    )
    assert process.stdin is not None, "it was asked for"
    assert process.stdout is not None, "it was asked for"
    listener = threading.Thread(target=_listen, args=(process.stdout, say), name="dashboard", daemon=True)
    listener.start()
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join()
        say(f"look at it again:  paceline dashboard {run_dir} --replay")


def _listen(lines: IO[str], say: Say) -> None:
    with lines:
        for line in lines:
            said = json.loads(line)
            if said["ok"]:
                say(f"dashboard: {said['data']['url']}")
            else:
                problem = said["error"]["problems"][0]
                say(f"no dashboard: {problem['what']}; {problem['hint']}")
