"""Overhead on Ray: paceline against Ray Train's TorchTrainer and Ray's parameter server example.

`python -m benchmarks.ray_train`: `ssgd` on Ray against TorchTrainer with torch DDP on CIFAR-10's network (3.2
million parameters, 2 workers, the same samples): samples/s after the first steps, and seconds from the call
to the first step; and `asgd` on Ray against the asynchronous parameter server of Ray's documentation with 1
MB of parameters. In turns; each run is a process of its own that starts its own Ray: all that users wait for.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Ratio, write
from paceline.comparison.benchmark.runner import Contender
from paceline.comparison.benchmark.schema import Measured, default_warm_up
from paceline.comparison.benchmark.torch_layout import RAY_TRAIN, TorchRequest, lay_out
from paceline.comparison.benchmark.torch_runner import contenders_of
from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.launchers.isolated import run_isolated
from paceline.plan.codec import Json
from paceline.plan.plan import Option

RESULT = Path(__file__).parent / "results" / "ray_train.json"
WORKERS = 2
IMAGES = 5000
PICTURES: dict[str, Option] = {"data": "synthetic", "subset": IMAGES, "test_subset": 10}
MEGABYTE = {"hidden": 510, "layers": 2}  # 262,651 float32 parameters
POINTS = 4096  # samples of xor
Rates = dict[str, list[float]]


def contenders(config: TrainConfig, mode: str, num_samples: int) -> dict[str, Contender]:
    """Ray Train, and this mode of Paceline on Ray, by name."""
    request = TorchRequest(config=config, modes=(mode,), launchers=("ray",))
    layout = lay_out(request, Facts(modules=frozenset({"ray"})))
    return {contender.name: contender for contender in contenders_of(layout, num_samples=num_samples)}


def on_pictures(batch: int, steps: int) -> tuple[Contender, Contender]:
    config = TrainConfig(
        task="cifar10", task_options=PICTURES, num_workers=WORKERS, batch_size=batch * WORKERS, steps=steps
    )
    result = contenders(config, "ssgd", IMAGES)
    return result[RAY_TRAIN], result["ssgd-ray"]


def turn(contender: Contender, seed: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        return contender.run(Path(folder), seed, lambda text: print(f"  {text}"))


def of_documentation(batch: int, steps: int) -> float:
    """Samples/s of Ray's example."""
    order: dict[str, Json] = {"workers": WORKERS, "batch": batch, "steps": steps, **MEGABYTE}
    order["warm_up"] = default_warm_up(steps)
    with tempfile.TemporaryDirectory() as folder:
        entry, log = "benchmarks.ray_parameter_server:run", Path(folder) / "log.txt"
        answered = run_isolated(entry, [order], log=log, note=print)
    print(f"  its accuracy {answered.values[0]['accuracy']}")
    return float(str(answered.values[0]["samples_per_s"]))


def of_asgd(batch: int, steps: int, seed: int) -> float:
    config = TrainConfig(
        task="xor",
        task_options={**MEGABYTE},
        num_workers=WORKERS,
        batch_size=batch * WORKERS,
        steps=steps,
        lr=0.1,
    )
    measured = turn(contenders(config, "asgd", POINTS)["asgd-ray"], seed)
    print(f"  its accuracy {measured.metrics['test_accuracy']}")
    assert measured.steady_samples_per_s is not None, "it is long enough to have a steady part"
    return measured.steady_samples_per_s


def measure(options: argparse.Namespace) -> Iterator[Rates]:
    """Results of all contestants, one figure for each round; after each round, so that none is lost."""
    results: Rates = {}
    trainer, ours = on_pictures(options.batch, options.steps)
    for number in range(options.rounds):
        pair = [("trainer", trainer), ("ssgd", ours)]
        for name, item in pair if number % 2 == 0 else pair[::-1]:
            seen = turn(item, number)
            print(f"round {number + 1}: {name} {_shown(seen)}", flush=True)
            results.setdefault(f"{name} samples/s", []).append(seen.steady_samples_per_s or 0.0)
            results.setdefault(f"{name} start s", []).append(seen.first_step_s or 0.0)
            results.setdefault(f"{name} total s", []).append(seen.total_s)
        theirs = of_documentation(options.small_batch, options.small_steps)
        asgd = of_asgd(options.small_batch, options.small_steps, number)
        results.setdefault("example samples/s", []).append(theirs)
        results.setdefault("asgd samples/s", []).append(asgd)
        print(f"round {number + 1}: example {theirs:,.0f}, asgd {asgd:,.0f} samples/s", flush=True)
        yield results


def _shown(seen: Measured) -> str:
    rate = seen.steady_samples_per_s or 0.0
    return (
        f"{rate:.1f} samples/s, first step after {seen.first_step_s or 0:.1f} s, {seen.total_s:.1f} s in all"
    )


def ratios_of(result: Rates) -> list[Ratio]:
    return [
        _ratio("ssgd on Ray ÷ TorchTrainer, samples/s", result, "ssgd samples/s", "trainer samples/s", 1.0),
        _ratio(
            "the same, call to first step", result, "ssgd start s", "trainer start s", 0.7, at_least=False
        ),
        _ratio("asgd on Ray ÷ Ray's example, 1 MB", result, "asgd samples/s", "example samples/s", 3.0),
    ]


def _ratio(name: str, result: Rates, mine: str, theirs: str, goal: float, *, at_least: bool = True) -> Ratio:
    rounds = tuple(a / b for a, b in zip(result[mine], result[theirs], strict=True))
    detail = f"last {result[mine][-1]:.1f}, {result[theirs][-1]:.1f}"
    return Ratio(name=name, goal=goal, at_least=at_least, rounds=rounds, detail=detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=50, help="images per worker and step")
    parser.add_argument("--steps", type=int, default=40, help="of each worker, on images")
    parser.add_argument("--small-batch", type=int, default=32, help="samples per worker and step, at 1 MB")
    parser.add_argument("--small-steps", type=int, default=500, help="of each worker, at 1 MB")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    ratios: list[Ratio] = []
    for result in measure(options):
        ratios = ratios_of(result)
        write(ratios, options.out, seen=result, batch=options.batch, steps=options.steps)
    for ratio in ratios:
        print(ratio.line())


if __name__ == "__main__":
    main()
