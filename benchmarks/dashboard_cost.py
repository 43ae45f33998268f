"""Slowdown of a run that is viewed: the same run in turns, alone, and with dashboard and viewer."""

import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from benchmarks.dashboard_load import Server, served
from paceline.core import environ
from paceline.core.clock import SystemClock
from paceline.events.read import read_history

WORKERS, BATCH, WARM_UP = 2, 32, 100
SCRAPE_S = 1.0


# Steps that are a pause of 5 ms leave the cores free; those of a larger model fill them.
FREE = ("--pace", "5ms")
BUSY = ("--task-option", "hidden=700", "--task-option", "layers=2", "--task-option", "lr=0.01")


def share_kept(rounds: int, steps: int, *, is_busy: bool) -> list[tuple[float, float]]:
    """(watched, alone) in samples a second, round by round; who goes first takes turns."""
    pairs = []
    for number in range(rounds):
        order = (True, False) if number % 2 == 0 else (False, True)
        rates = {is_watched: _run(steps, is_watched, BUSY if is_busy else FREE) for is_watched in order}
        pairs.append((rates[True], rates[False]))
    return pairs


def _run(steps: int, is_watched: bool, load: tuple[str, ...]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        args = ["--task", "xor", "--mode", "ssgd", "--num-workers", str(WORKERS), "--batch-size", str(BATCH)]
        more = [*load, "--steps", str(WARM_UP + steps), "--run-dir", str(run_dir), "--quiet"]
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "train", *args, *more],
            stdout=subprocess.DEVNULL,
            env=environ.for_child(**({"PACELINE_LIVE_LOG": "1"} if is_watched else {})),
        )
        if is_watched:
            _watch(run_dir, process)
        assert process.wait() == 0, "the run ended well"
        values = read_history(run_dir / "events.jsonl").steps.values()
        return sum(
            BATCH * (len(rows) - 1 - WARM_UP) * 1e9 / (rows[-1].start_ns - rows[WARM_UP].start_ns)
            for rows in values
        )


def _watch(run_dir: Path, process: "subprocess.Popen[bytes]") -> None:
    while not (run_dir / "events.jsonl").exists():
        SystemClock().sleep(0.02)
    with served(run_dir) as server:
        viewer = threading.Thread(target=_view, args=(server, process), daemon=True)
        viewer.start()
        while process.poll() is None:
            _scrape(server)
            SystemClock().sleep(SCRAPE_S)
        viewer.join()


def _view(server: Server, process: "subprocess.Popen[bytes]") -> None:
    """Follow the run like a page: everything is read at once."""
    with socket.create_connection(server.address) as stream:
        stream.settimeout(1.0)
        stream.sendall(f"GET /api/v1/stream HTTP/1.1\r\n{server.head}\r\n".encode())
        while process.poll() is None:
            with suppress(TimeoutError):
                if not stream.recv(1 << 16):
                    return


def _scrape(server: Server) -> None:
    with socket.create_connection(server.address) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\nConnection: close\r\n{server.head}\r\n".encode())
        while connection.recv(1 << 16):
            pass
