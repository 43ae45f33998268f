"""A dashboard that is killed: its effect on training, and the events that the next one lacks, counted."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dashboard_load import served, viewers
from paceline.core import environ
from paceline.core.clock import SystemClock
from paceline.events.read import read_history

SIDE_S = 3.0
WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class Survived:
    before: int  # steps in the last seconds with a dashboard
    after: int  # in the first seconds without
    seen: int  # by another dashboard, afterwards
    missing: int  # of the log's


def survived() -> Survived:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        args = ["--task", "xor", "--num-workers", "2", "--pace", "10ms", "--steps", "1200", "--quiet"]
        run = subprocess.Popen(
            [sys.executable, "-m", "paceline", "train", *args, "--run-dir", str(run_dir)],
            stdout=subprocess.DEVNULL,
            env=environ.for_child(PACELINE_LIVE_LOG="1"),
        )
        try:
            killed_ns = _kill_one(run_dir)
            SystemClock().sleep(SIDE_S + 1)
        finally:
            assert run.wait() == 0, "the run ended well"
        return _counted(run_dir, killed_ns)


def _kill_one(run_dir: Path) -> int:
    """When, on the clock of the log."""
    while not (run_dir / "events.jsonl").exists() or '"steps"' not in (run_dir / "events.jsonl").read_text():
        SystemClock().sleep(0.05)
    with served(run_dir) as server, viewers(server, 1, do_read=True):
        SystemClock().sleep(WARM_UP_S + SIDE_S)
        os.kill(server.pid, signal.SIGKILL)
        return SystemClock().now_ns()


def _counted(run_dir: Path, killed_ns: int) -> Survived:
    lanes = read_history(run_dir / "events.jsonl").steps.values()
    starts = [row.start_ns for rows in lanes for row in rows]
    side_ns = round(SIDE_S * 1e9)
    with served(run_dir) as server:
        host, port = server.address
        token = server.url.partition("token=")[2]
        asking = urllib.request.Request(
            f"http://{host}:{port}/api/v1/timeline?most=20000", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asking, timeout=60) as answer:
            seen = sum(len(lane["rows"]) for lane in json.loads(answer.read())["lanes"])
    return Survived(
        before=sum(killed_ns - side_ns <= start < killed_ns for start in starts),
        after=sum(killed_ns <= start < killed_ns + side_ns for start in starts),
        seen=seen,
        missing=len(starts) - seen,
    )
