"""What does it cost to be able to survive, when nobody dies? `ssgd` with --elastic ÷ without, in turns.

Two workers, two shards, the same model and batch; both sides record events and
are measured after a warm-up, from their own logs. Part of `make bench-recovery`.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Ratio, write
from paceline.app.progress import SilentWatcher
from paceline.app.train import train
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Elastic, OnNan, Plan

RESULTS = Path(__file__).parent / "results" / "elastic_cost.json"
WORKERS, BATCH, WARM_UP = 2, 32, 50
# name, hidden, layers, steps: about so long takes a step on a slow core
SIZES = (("1 ms", 300, 2, 2000), ("5 ms", 1000, 2, 500), ("20 ms", 2100, 2, 150))
GOAL = 0.97


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    for name, hidden, layers, steps in SIZES:
        plan = Plan(
            run="bench",
            task="xor",
            mode="ssgd",
            num_workers=WORKERS,
            steps=WARM_UP + steps,
            batch_sizes=(BATCH,) * WORKERS,
            task_options={"hidden": hidden, "layers": layers, "lr": 0.01},
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
            rates = {one is elastic: samples_per_s(launcher, one) for one in both}
            pairs.append((rates[True], rates[False]))
        step_ms = 1000 * BATCH * WORKERS / pairs[-1][1]
        yield Ratio(
            name=f"ssgd --elastic ÷ ssgd, steps of about {name}",
            goal=GOAL,
            at_least=True,
            rounds=tuple(ours / plain for ours, plain in pairs),
            detail=f"a step without took {step_ms:.2f} ms",
        )


def samples_per_s(launcher: LocalLauncher, plan: Plan) -> float:
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder), SilentWatcher(), warm=launcher)
        history = read_history(Path(folder) / "events.jsonl")
    rates = [
        BATCH * (len(rows) - 1 - WARM_UP) * 1e9 / (rows[-1].start_ns - rows[WARM_UP].start_ns)
        for rows in history.steps.values()
    ]
    return sum(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    ratios = []
    with LocalLauncher() as launcher:
        for ratio in measure(launcher, options.rounds):
            ratios.append(ratio)
            print(ratio.line(), flush=True)
    write(ratios, options.output)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
