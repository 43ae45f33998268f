"""Overhead of monitoring: with the collector and a custom metric in each step ÷ without, in turns.

Two workers, paced or computing. Goal: at least 99 % of the samples a second. Turns are taken within one run,
many a second, and each is compared with its neighbours: two runs of seconds differ by more than the effect
measured. Also the cost of one call of `paceline.metric`, and of reading a second of log.
`make bench-watch`.
"""

import argparse
import bisect
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline
from benchmarks.report import Ratio, write
from paceline.events import custom_metrics
from paceline.events.read import read_history
from paceline.events.schema import StepRow
from paceline.events.summary import end_ns
from paceline.launchers.local import LocalLauncher
from paceline.monitoring.probes import collector
from paceline.monitoring.probes.host import HostProbe
from paceline.monitoring.view.feed import Feed
from paceline.plan.plan import Plan
from paceline.tasks.xor import XorTask
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

RESULTS = Path(__file__).parent / "results" / "watch_overhead.json"
GOAL = 0.99
WORKERS, BATCH = 2, 32
BLOCK = 25  # steps that all record a custom metric, or none does
LOOK_S = 0.5  # between two samples of the collector: shorter than usual, to measure the cost of one
SIZES = (("steps of 5 ms", 0.005, 64, 1200), ("computing, 0.06 M parameters", 0.0, 240, 5000))


class ReportingTask(XorTask):
    """Records a custom metric in every step of every other block."""

    calls = 0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # Any: as the task declares it
        loss = super().loss(model, batch)
        if self.calls // BLOCK % 2:
            paceline.metric("told", 1.0)
        self.calls += 1
        return loss


def rows_of_run(launcher: LocalLauncher, plan: Plan) -> tuple[list[StepRow], list[int]]:
    """Worker 0's steps, and the times of the collector's samples."""
    collector.EVERY_S = LOOK_S
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder) / "run", SilentWatcher(), warm=launcher)
        path = Path(folder) / "run" / "events.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        looks = [int(e["columns"]["at_ns"]) for e in lines if e.get("kind") == "hosts"]
        return read_history(path).steps[0], looks


def looked_at(rows: list[StepRow], looks_ns: list[int]) -> float:
    """Median of: steps in the quarter of a second after a sample ÷ those in the neighbouring quarters.

    It is one sample in a quarter of a second; the collector samples once a second, and costs a quarter of it.
    """
    ends = [end_ns(row) for row in rows]
    window_ns, result = round(LOOK_S / 2 * 1e9), []
    for look_ns in looks_ns:
        if look_ns - window_ns > ends[0] and look_ns + 2 * window_ns < ends[-1]:
            before, on, after = (
                _steps_until(ends, look_ns + (k + 1) * window_ns)
                - _steps_until(ends, look_ns + k * window_ns)
                for k in (-1, 0, 1)
            )
            result.append(on / ((before + after) / 2))
    return 1 - (1 - statistics.median(result)) * LOOK_S / 2


def _steps_until(ends: list[int], at_ns: int) -> float:
    """Steps until `at_ns`, including the fraction of the current step."""
    i = bisect.bisect_right(ends, at_ns)
    return i + (at_ns - ends[i - 1]) / (ends[i] - ends[i - 1])


def reporting_ratio(rows: list[StepRow]) -> float:
    """Median of: time of a block of steps without a custom metric ÷ with."""
    blocks = [rows[i : i + BLOCK] for i in range(BLOCK, len(rows) - 2 * BLOCK, BLOCK)]
    took = [end_ns(block[-1]) - block[0].start_ns for block in blocks]
    # The first of these records; each is compared with the mean of its neighbours, which do not.
    results = [(took[i - 1] + took[i + 1]) / 2 / took[i] for i in range(2, len(took) - 1, 2)]
    return statistics.median(results)


def measure(launcher: LocalLauncher, rounds: int) -> list[Ratio]:
    results = []
    for name, pace_s, hidden, steps in SIZES:
        plan = Plan(
            run="bench",
            task="benchmarks.watch_overhead:Told",
            mode="ssgd",
            num_workers=WORKERS,
            steps=steps,
            batch_sizes=(BATCH,) * WORKERS,
            task_options={"hidden": hidden, "layers": 2, "lr": 0.01},
            pace_s=pace_s,
        )
        both, looks, numbers = [], [], []
        for _ in range(rounds):
            rows, looks_ns = rows_of_run(launcher, plan)
            looks.append(looked_at(rows, looks_ns))
            numbers.append(reporting_ratio(rows))
            both.append(looks[-1] * numbers[-1])
        detail = f"(the collector {statistics.median(looks):.4f}, numbers {statistics.median(numbers):.4f})"
        results.append(
            Ratio(name=f"watched ÷ not, {name}", goal=GOAL, at_least=True, rounds=tuple(both), detail=detail)
        )
    return results


def call_ns() -> float:
    began = time.perf_counter_ns()
    for i in range(100_000):
        paceline.metric("told", i)
        if i % 32 == 0:
            custom_metrics.rows_of_step(i, 0)
    return (time.perf_counter_ns() - began) / 100_000


def look_ms() -> float:
    """Cost of one sample of the collector's thread, once a second: the machine and two processes."""
    door, pids = HostProbe(Path.cwd()), {"worker-0": os.getpid(), "worker-1": os.getppid()}
    began_ns = time.thread_time_ns()
    for _ in range(100):
        door.sample(0)
        door.processes(0, pids)
    return (time.thread_time_ns() - began_ns) / 1e8


def read_ms(launcher: LocalLauncher) -> float:
    """Time that a reader with all default rules needs for a second of a run's log."""
    plan = Plan(
        run="bench", task="xor", mode="ssgd", num_workers=2, steps=500, batch_sizes=(8, 8), pace_s=0.01
    )
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder) / "run", SilentWatcher(), warm=launcher)
        began_s = time.perf_counter()
        feed = Feed(Path(folder) / "run")
        feed.read()
        return (time.perf_counter() - began_s) * 1000 / (feed.now_ns() - feed.view.t0_ns) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    launcher = LocalLauncher()
    try:
        print(f"paceline.metric: {call_ns():.0f} ns a call")
        print(f"a look at the machine: {look_ms():.2f} ms of one core, each second")
        print(f"reading: {read_ms(launcher):.2f} ms for a second of log with 2 workers")
        ratios = measure(launcher, rounds)
    finally:
        launcher.close()
    write(ratios, RESULTS)
    for ratio in ratios:
        print(ratio.line())


if __name__ == "__main__":
    main()
