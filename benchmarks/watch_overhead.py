"""What does watching cost a run? With the collector and a custom metric in each step ÷ without, in turns.

Two workers, paced or computing. Goal: at least 99 % of the samples a second. Also what one call of
`paceline.metric` takes, and what a second of log costs whoever reads it. `make bench-watch`.
"""

import argparse
import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline
from benchmarks.report import Ratio, write
from paceline.app.progress import SilentWatcher
from paceline.app.train import train
from paceline.events import custom
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan
from paceline.tasks.xor import XorTask
from paceline.watch import collector
from paceline.watch.feed import Feed
from paceline.watch.host_door import HostDoor

RESULTS = Path(__file__).parent / "results" / "watch_overhead.json"
GOAL = 0.99
WORKERS, BATCH = 2, 32
SIZES = (("steps of 5 ms", 0.005, 64, 600), ("computing, 0.06 M parameters", 0.0, 240, 2500))


class Told(XorTask):
    """Tells a number of its own in every step."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # Any: as the task declares it
        loss = super().loss(model, batch)
        paceline.metric("told", 1.0)
        return loss


def samples_per_s(launcher: LocalLauncher, plan: Plan, *, every_s: float) -> float:
    """`every_s`: between two looks at the machine."""
    collector.EVERY_S = every_s
    with tempfile.TemporaryDirectory() as folder:
        result = train(plan, Path(folder) / "run", SilentWatcher(), warm=launcher)
    return float(str(result["samples_per_s"]))


def measure(launcher: LocalLauncher, rounds: int) -> list[Ratio]:
    found = []
    for name, pace_s, hidden, steps in SIZES:
        plan = Plan(
            run="bench",
            task="xor",
            mode="ssgd",
            num_workers=WORKERS,
            steps=steps,
            batch_sizes=(BATCH,) * WORKERS,
            task_options={"hidden": hidden, "layers": 2, "lr": 0.01},
            pace_s=pace_s,
        )
        watched = dataclasses.replace(plan, task="benchmarks.watch_overhead:Told")
        pairs = []
        for number in range(rounds):
            order = [(watched, 1.0), (plan, 1e9)]
            rates = {
                every_s: samples_per_s(launcher, one, every_s=every_s)
                for one, every_s in (order if number % 2 == 0 else order[::-1])
            }
            pairs.append(rates[1.0] / rates[1e9])
        found.append(
            Ratio(name=f"watched ÷ not, {name}", goal=GOAL, at_least=True, rounds=tuple(pairs), detail="")
        )
    return found


def call_ns() -> float:
    began = time.perf_counter_ns()
    for i in range(100_000):
        paceline.metric("told", i)
        if i % 32 == 0:
            custom.rows_of_step(i, 0)
    return (time.perf_counter_ns() - began) / 100_000


def look_ms() -> float:
    """Of the collector's thread, once a second: a look at the machine and at two processes."""
    door, pids = HostDoor(Path.cwd()), {"worker-0": os.getpid(), "worker-1": os.getppid()}
    began_ns = time.thread_time_ns()
    for _ in range(100):
        door.look(0)
        door.processes(0, pids)
    return (time.thread_time_ns() - began_ns) / 1e8


def read_ms(launcher: LocalLauncher) -> float:
    """What a second of a run's log costs a reader with all default rules."""
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
    for one in ratios:
        print(one.line())


if __name__ == "__main__":
    main()
