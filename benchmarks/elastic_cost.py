"""Overhead of elasticity without failures: `ssgd` with --elastic ÷ without, in turns.

Two workers, two shards, the same model and batch; both sides record events and
are measured after a warm-up, from their own logs. Part of `make bench-recovery`.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Ratio, tell_and_write
from benchmarks.runs import really_run
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Elastic, OnNan, Plan

RESULTS = Path(__file__).parent / "results" / "elastic_cost.json"
WORKERS, BATCH, WARM_UP = 2, 32, 50
# name, pace, width of two hidden layers, steps. Paced steps take as long on any machine, and others disturb
# them little; the rest compute all the time: 0.06 and 5.6 million parameters.
SIZES = (
    ("steps of 1 ms", 0.001, 64, 1500),
    ("steps of 5 ms", 0.005, 64, 400),
    ("steps of 20 ms", 0.020, 64, 150),
    ("computing, 0.06 M parameters", 0.0, 240, 1500),
    ("computing, 5.6 M parameters", 0.0, 2364, 80),
)
GOAL = 0.97


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    for name, pace_s, hidden, steps in SIZES:
        plan = Plan(
            run="bench",
            task="xor",
            mode="ssgd",
            num_workers=WORKERS,
            steps=WARM_UP + steps,
            batch_sizes=(BATCH,) * WORKERS,
            task_options={"hidden": hidden, "layers": 2, "lr": 0.01},
            pace_s=pace_s,
        )
        elastic = dataclasses.replace(
            plan,
            elastic=Elastic(workers=WORKERS, min_workers=1, max_workers=WORKERS),
            strategy=dataclasses.replace(plan.strategy, on_nan=OnNan.STOP),
        )
        pairs = []
        for number in range(rounds):
            # Who goes first takes turns too.
            both = [plan, elastic] if number % 2 == 0 else [elastic, plan]
            rates = {item is elastic: samples_per_s(launcher, item) for item in both}
            pairs.append((rates[True], rates[False]))
        with_ms, without_ms = (
            1000 * BATCH * WORKERS / statistics.median(pair[side] for pair in pairs) for side in (0, 1)
        )
        yield Ratio(
            name=f"ssgd --elastic ÷ ssgd, {name}",
            goal=GOAL,
            at_least=True,
            rounds=tuple(ours / plain for ours, plain in pairs),
            detail=f"a step took {with_ms:.3f} ms, without {without_ms:.3f} ms",
        )


def samples_per_s(launcher: LocalLauncher, plan: Plan) -> float:
    rates = [
        BATCH * (len(rows) - 1 - WARM_UP) * 1e9 / (rows[-1].start_ns - rows[WARM_UP].start_ns)
        for rows in really_run(launcher, plan).steps.values()
    ]
    return sum(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with LocalLauncher() as launcher:
        tell_and_write(measure(launcher, options.rounds), options.output)


if __name__ == "__main__":
    main()
