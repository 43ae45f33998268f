"""Bytes saved by each strategy at equal quality, relative to plain ssgd in the same run.

`python -m benchmarks.bytes_at_quality`: every row trains the same task on equal
work from several seeds; bytes are those that the run counted, both ways. Quality
is equal when the accuracy on `digits` is within half a point of ssgd's, or the
validation loss of the character model within 1 %, on the mean over the seeds.
`--text FILE` trains the character model on your own text.

On `digits` all strategies have the same learning rate. On the character model each
has its own, the best of a small grid (README.md), ssgd too; the rate rises
over a tenth of the steps, which compressed gradients need more than plain
ones, and falls along a cosine: training must converge, because a strategy that is
slower by a third then loses little.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Codec, Compression, Plan, StrategyOptions
from paceline.sync.schedule import RateSchedule, RateShape
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

RESULT = Path(__file__).parent / "results" / "bytes_at_quality.json"
WORKERS = 4
H = 100


@dataclass(frozen=True, slots=True)
class Way:
    label: str
    mode: str = "ssgd"
    compress: Compression | None = None
    strategy: StrategyOptions = field(default_factory=StrategyOptions)
    goal: float | None = None  # minimum ratio of ssgd's bytes to Paceline's


WAYS = (
    Way("ssgd"),
    Way("ssgd bf16", compress=Compression(codec=Codec.BF16), goal=2.0),
    Way("ssgd fp16", compress=Compression(codec=Codec.FP16), goal=2.0),
    Way("ssgd int8", compress=Compression(codec=Codec.INT8), goal=3.9),
    Way("ssgd topk:0.01", compress=Compression(codec=Codec.TOPK, amount=0.01)),
    Way("ssgd powersgd:2", compress=Compression(codec=Codec.POWERSGD, amount=2), goal=20.0),
    Way("ssgd sign", compress=Compression(codec=Codec.SIGN), goal=30.0),
    Way(
        f"diloco H={H} int8",
        mode="diloco",
        compress=Compression(codec=Codec.INT8),
        strategy=StrategyOptions(sync_every=H, outer_lr=0.7, outer_momentum=0.8),
        goal=380.0,
    ),
    Way(
        f"localsgd H={H} int8",
        mode="localsgd",
        compress=Compression(codec=Codec.INT8),
        strategy=StrategyOptions(sync_every=H),
    ),
)


# Methods tried on the character model, and the rate of each (README.md describes the search).
CHARLM_RATES = {
    "ssgd": 0.004,
    "ssgd bf16": 0.004,
    "ssgd int8": 0.004,
    "ssgd powersgd:2": 0.008,
    "ssgd sign": 0.003,
    f"diloco H={H} int8": 0.008,
}


def digits(seed: int, steps: int) -> Plan:
    return Plan(
        run="bytes",
        task="digits",
        task_options={"hidden": 512, "layers": 2},
        mode="ssgd",
        num_workers=WORKERS,
        steps=steps,
        batch_sizes=(16,) * WORKERS,
        seed=seed,
    )


def charlm(seed: int, steps: int, text: Path | None) -> Plan:
    # 96 wide: less, and matrices of rank 2 would no longer be a twentieth.
    options: dict[str, bool | int | float | str] = {"width": 96, "layers": 1, "context": 32}
    if text is not None:
        options["file"] = str(text)
    return Plan(
        run="bytes",
        task="charlm",
        task_options=options,
        mode="ssgd",
        num_workers=WORKERS,
        steps=steps,
        batch_sizes=(8,) * WORKERS,
        seed=seed,
        lr_schedule=RateSchedule(shape=RateShape.COSINE, warmup=steps // 10, steps=steps),
    )


STEPS = {"digits": 1500, "charlm": 12_000}


def ways_of(task: str) -> tuple[Way, ...]:
    return WAYS if task == "digits" else tuple(way for way in WAYS if way.label in CHARLM_RATES)


@dataclass(frozen=True, slots=True)
class Row:
    task: str
    way: str
    quality: float
    difference: float  # from ssgd's: points of accuracy, or a share of the loss
    is_equal: bool
    ratio: float  # ssgd's bytes divided by this method's
    codec_share: float  # of the workers' time
    goal: float | None
    qualities: list[float]


def measure(plan: Plan, way: Way, launcher: LocalLauncher) -> dict[str, float]:
    rate = CHARLM_RATES[way.label] if plan.task == "charlm" else None
    plan = replace(plan, mode=way.mode, compress=way.compress, strategy=way.strategy, lr=rate)
    with tempfile.TemporaryDirectory() as folder:
        result = train(plan, Path(folder) / "run", SilentWatcher(), warm=launcher)
    if result["stopped_early"]:  # an incomplete run is no evidence of quality
        raise KeyboardInterrupt
    metrics, moved, phases = result["metrics"], result["bytes"], result["phases_s"]
    assert isinstance(metrics, dict), "a finished run has metrics"
    assert isinstance(moved, dict), "a recorded run has counted its bytes"
    assert isinstance(phases, dict), "a recorded run has its phases"
    quality = metrics["test_accuracy"] if plan.task == "digits" else metrics["val_loss"]
    total_s = sum(float(str(s)) for s in phases.values())
    return {
        "quality": float(str(quality)),
        "bytes": float(str(moved["out"])) + float(str(moved["in"])),
        "codec": float(str(phases["codec"])) / total_s,
    }


def compare(task: str, plans: list[Plan], ways: tuple[Way, ...], launcher: LocalLauncher) -> list[Row]:
    results: dict[str, list[dict[str, float]]] = {way.label: [] for way in ways}
    for plan in plans:  # seed by seed, so that a disturbance hits all ways alike
        for way in ways:
            results[way.label].append(measure(plan, way, launcher))
            print(
                f"{task} seed {plan.seed} {way.label}: {results[way.label][-1]}", file=sys.stderr, flush=True
            )
    base = results[ways[0].label]
    base_quality = statistics.fmean(f["quality"] for f in base)
    rows = []
    for way in ways:
        mine = results[way.label]
        quality = statistics.fmean(f["quality"] for f in mine)
        is_accuracy = task == "digits"
        difference = quality - base_quality if is_accuracy else quality / base_quality - 1
        # Better than ssgd is as good as equal.
        is_equal = difference >= -0.005 if is_accuracy else difference <= 0.01
        rows.append(
            Row(
                task,
                way.label,
                quality,
                difference,
                is_equal,
                statistics.fmean(f["bytes"] for f in base) / statistics.fmean(f["bytes"] for f in mine),
                statistics.fmean(f["codec"] for f in mine),
                way.goal,
                [f["quality"] for f in mine],
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--text", type=Path, help="text file for the character model")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="instead of the task's own; fewer are less equal")
    parser.add_argument("--task", choices=("digits", "charlm"), action="append")
    chosen = parser.parse_args()
    tasks = chosen.task or ["digits", "charlm"]
    rows: list[Row] = []
    with LocalLauncher() as launcher:
        for task in tasks:
            steps = chosen.steps or STEPS[task]
            plans = [
                digits(seed, steps) if task == "digits" else charlm(seed, steps, chosen.text)
                for seed in range(chosen.seeds)
            ]
            rows += compare(task, plans, ways_of(task), launcher)
    head = f"{'task':<8}{'way':<22}{'quality':>9}{'differs':>9}{'equal':>7}"
    print(f"{head}{'bytes saved':>13}{'goal':>7}{'codec':>8}")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:g}x"
        print(
            f"{row.task:<8}{row.way:<22}{row.quality:>9.4f}{row.difference:>+9.4f}{row.is_equal!s:>7}"
            f"{row.ratio:>12.1f}x{goal:>7}{row.codec_share:>8.1%}"
        )
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
