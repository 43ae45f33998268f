"""All-reduce through shared memory: a whole `ssgd` run against plain torch DDP/gloo."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Ratio
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan, Transport
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

WARM_UP = 50
# name, hidden, layers, steps, goal: two hidden layers make 0.06, 0.30 and 5.6 million parameters
SIZES = (("0.06M", 240, 2, 1500, 1.5), ("0.3M", 546, 2, 800, 1.25), ("5.6M", 2364, 2, 150, 1.25))
BATCH = 32


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    for name, hidden, layers, steps, goal in SIZES:
        pairs = []
        for _ in range(rounds):
            peer = _peer(hidden, layers, steps)
            ours = ours_samples_per_s(launcher, hidden, layers, steps)
            pairs.append((ours, peer))
        detail = f"batch {BATCH}/worker; last round {pairs[-1][0]:,.0f} against {pairs[-1][1]:,.0f} samples/s"
        ratios = tuple(ours / peer for ours, peer in pairs)
        yield Ratio(
            name=f"ssgd/shm ÷ DDP/gloo, {name} parameters",
            goal=goal,
            at_least=True,
            rounds=ratios,
            detail=detail,
        )


def _peer(hidden: int, layers: int, steps: int) -> float:
    sizes = [str(n) for n in (hidden, layers, BATCH, steps)]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.ddp_peer", *sizes], check=True, capture_output=True, text=True
    )
    return float(result.stdout)


def ours_samples_per_s(launcher: LocalLauncher, hidden: int, layers: int, steps: int) -> float:
    plan = Plan(
        run="bench",
        task="xor",
        mode="ssgd",
        num_workers=2,
        steps=WARM_UP + steps,
        batch_sizes=(BATCH, BATCH),
        transport=Transport.SHM,
        task_options={"hidden": hidden, "layers": layers, "lr": 0.01},
    )
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder), SilentWatcher(), warm=launcher)
        history = read_history(Path(folder) / "events.jsonl")
    rates = [
        BATCH * (len(r) - 1 - WARM_UP) * 1e9 / (r[-1].start_ns - r[WARM_UP].start_ns)
        for r in history.steps.values()
    ]
    return sum(rates)
