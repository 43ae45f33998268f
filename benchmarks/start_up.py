"""Start-up time: from the command to the end of the first step of four workers.

Against `python -c 'import torch'`, which every worker of a naive launcher pays.
The first step's end is read from the event log: all processes of a host share
one monotonic clock, and the stopwatch starts before the command does.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Ratio
from paceline.events.read import read_history
from paceline.events.summary import end_ns


def measure(rounds: int) -> Iterator[Ratio]:
    pairs = [(_import_torch(), _first_step()) for _ in range(rounds)]
    yield Ratio(
        name="command to first step, 4 workers ÷ import torch",
        goal=1.3,
        at_least=False,
        rounds=tuple(ours / alone for alone, ours in pairs),
        detail=f"last round {pairs[-1][1]:.2f} s against {pairs[-1][0]:.2f} s",
    )


def _import_torch() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - started


def _first_step() -> float:
    """Seconds until the slowest of the four workers has finished its first step."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", "--num-workers", "4", "--steps", "3", "--quiet", "--run-dir", folder]
        started_ns = time.perf_counter_ns()
        subprocess.run([sys.executable, "-m", "paceline", *command], check=True, stdout=subprocess.DEVNULL)
        history = read_history(Path(folder) / "events.jsonl")
    return (max(end_ns(rows[0]) for rows in history.steps.values()) - started_ns) / 1e9
