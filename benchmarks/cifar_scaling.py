"""Scaling on CIFAR-10's network: two workers relative to one, on 2 cores with one thread each.

`python -m benchmarks.cifar_scaling`: one epoch of 5,000 images, alone, by ssgd and by ddp with two workers,
and plain torch alone and as DDP, interleaved, with the same batch per worker. Speed is images/s
after the first steps, and each ratio is to the run alone of the same round. The images are the
synthetic data set: their content does not affect the time.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cifar_peer import IMAGES, WARM_UP
from benchmarks.report import Ratio, write
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Device, Plan, Transport
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

RESULT = Path(__file__).parent / "results" / "cifar_scaling.json"
GOAL = 1.85
TRANSPORTS = {"single": Transport.NONE, "ssgd": Transport.SHM, "ddp": Transport.GLOO}


def ours(launcher: LocalLauncher, mode: str, batch: int, images: int) -> float:
    """Images/s of all workers together, over an epoch of `images` images."""
    workers = 1 if mode == "single" else 2
    plan = Plan(
        run="bench",
        task="cifar10",
        mode=mode,
        num_workers=workers,
        steps=WARM_UP + images // (batch * workers),
        batch_sizes=(batch,) * workers,
        transport=TRANSPORTS[mode],
        device=Device.CPU,
        task_options={"data": "synthetic", "subset": IMAGES, "test_subset": 10},
    )
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder), SilentWatcher(), warm=launcher)
        history = read_history(Path(folder) / "events.jsonl")
    rates = [
        batch * (len(r) - 1 - WARM_UP) * 1e9 / (r[-1].start_ns - r[WARM_UP].start_ns)
        for r in history.steps.values()
    ]
    return sum(rates)


def peer(ranks: int, batch: int, images: int) -> float:
    sizes = [str(n) for n in (ranks, batch, images // (batch * ranks))]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.cifar_peer", *sizes], check=True, capture_output=True, text=True
    )
    return float(result.stdout)


def measure(rounds: int, batch: int, images: int) -> Iterator[dict[str, list[float]]]:
    """Images/s of every way, one figure for each round; after each round, so that none is lost."""
    results: dict[str, list[float]] = {}
    with LocalLauncher() as launcher:
        for number in range(rounds):
            for mode in ("single", "ssgd", "ddp"):
                results.setdefault(mode, []).append(ours(launcher, mode, batch, images))
            for ranks in (1, 2):
                results.setdefault(f"torch x{ranks}", []).append(peer(ranks, batch, images))
            text = ", ".join(f"{name} {rates[-1]:.1f}" for name, rates in results.items())
            print(f"round {number + 1}: {text} images/s", flush=True)
            yield results


def ratios_of(values: dict[str, list[float]], batch: int) -> list[Ratio]:
    return [
        Ratio(
            name=f"{mode}, 2 workers ÷ {alone}",
            goal=GOAL,
            at_least=True,
            rounds=tuple(two / one for two, one in zip(values[mode], values[alone], strict=True)),
            detail=f"batch {batch}/worker; last {values[mode][-1]:.1f}, {values[alone][-1]:.1f} images/s",
        )
        for mode, alone in (("ssgd", "single"), ("ddp", "single"), ("torch x2", "torch x1"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=125, help="images per worker and step")
    parser.add_argument("--images", type=int, default=IMAGES, help="of an epoch; fewer for a quick look")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    ratios: list[Ratio] = []
    for result in measure(options.rounds, options.batch, options.images):
        ratios = ratios_of(result, options.batch)
        write(ratios, options.out, images_per_s=result, images=options.images, batch=options.batch)
    for ratio in ratios:
        print(ratio.line())


if __name__ == "__main__":
    main()
