"""Memory and time of the summary at the end of a long run: python -m benchmarks.long_logs [--steps N].

Writes a log as asgd with eight workers does (a row per step of a worker, three per step of the server), and
summarises it in a process of its own.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.core.clock import SystemClock, monotonic_s
from paceline.events.log import EventLog, write_header
from paceline.events.log_summary import summarise_log
from paceline.events.schema import ServerRow, StepRow
from paceline.events.segments import end_of_lines, head_of

WORKERS = 8


def write(path: Path, steps: int) -> None:
    """Write a log with `steps` steps of all workers together."""
    write_header(path, run="long", plan="p", t0_ns=0, started_unix_s=0.0)
    workers = [EventLog(path, who=f"worker-{rank}", clock=SystemClock()) for rank in range(WORKERS)]
    server = EventLog(path, who="server-0", clock=SystemClock())
    for position in range(steps):
        number, rank = divmod(position, WORKERS)
        now_ns, read = position * 250_000, max(0, position - WORKERS)
        phases = (40_000, 310_000 + position % 977, 620_000 + position % 353, 0, 90_000, 0, 130_000, 0)
        loss = 2.0 / (1 + position / steps)
        work = (loss, 32, 40_960, 40_960, read, False)
        workers[rank].add_step(StepRow(number, position, now_ns, *phases, *work))
        place = (rank, number, position)
        server.add_server(ServerRow("read", now_ns, *place, read, read, 0, 0, 0, 1.0))
        late = (read, position - read, position % 3, 1_900_000 + position % 701)
        server.add_server(ServerRow("push", now_ns + 1_900_000, *place, position, *late, 1.0))
        server.add_server(ServerRow("apply", now_ns + 1_950_000, *place, position + 1, *late, 1.0))
    for log in (*workers, server):
        log.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--read", type=Path)
    options = parser.parse_args()
    if options.read is not None:
        began_s = monotonic_s()
        gradients = summarise_log(options.read).summary.gradients
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        print(f"{gradients:,} gradients: {monotonic_s() - began_s:.1f} s, peak {peak_mb:.0f} MB")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        write(path, options.steps)
        print(f"log of {end_of_lines(path) / 1e6:.0f} MB in {head_of(path).number + 1} segments", flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.long_logs", "--read", str(path)], check=True)


if __name__ == "__main__":
    main()
