"""The demo: every strategy on equal work with one straggler, one run each."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES, TRANSPORTS, Channel
from paceline.plan.codec import Json
from paceline.plan.plan import Plan, StrategyOptions
from paceline.plan.resolve import BASELINE, single_worker_plan
from paceline.sync.fault_rules import StragglerRule
from paceline.training.progress import Watcher
from paceline.training.run import train

WORKERS = 4
BATCH = 16
STEPS = 200
PACE_S = 0.005
STRAGGLER = 1
FACTOR = 3.0
LOCAL_STEPS = 8
BOUND = 3
# Only modes that work with the optimizer of all others and with a model as small as XOR's.
SHOWN = tuple(mode for mode in MODES.values() if not mode.optimizers and not mode.is_split)
LEFT_OUT = tuple(mode.name for mode in MODES.values() if mode not in SHOWN)
INTRODUCTION = (
    f"XOR with {WORKERS} workers, {STEPS} steps of {BATCH} samples per worker, {PACE_S * 1e3:g} ms per step; "
    f"worker {STRAGGLER} is {FACTOR:g}x slower. Equal work for {len(SHOWN)} of {len(MODES)} modes"
    f" (without {' and '.join(LEFT_OUT)}, which need another optimizer or a larger model):"
)
TRANSPORT_NOTE = (
    "ddp communicates by gloo over loopback TCP, ssgd by shared memory;"
    " for the same transport: `paceline train --mode ssgd --transport gloo`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    mode: str
    seconds: float  # from the first step to the last
    samples_per_s: float
    accuracy: float
    waiting: float | None  # share of the workers' time spent waiting; None: torch DDP hides it in backward
    megabytes: float  # sent by all workers
    staleness: float | None
    versus_ssgd: float  # times as fast


def run_demo(folder: Path, watcher: Callable[[str], Watcher], *, launcher: LocalLauncher) -> list[DemoRow]:
    """Train each mode of SHOWN on the same samples with the same straggler; one row each."""
    results = {}
    for plan in demo_plans():
        results[plan.mode] = train(plan, _claimed(folder / plan.mode), watcher(plan.mode), warm=launcher)
        if "stopped_by" in results[plan.mode]:  # Ctrl-C stops the demo, not only this mode
            raise KeyboardInterrupt
    together = _number(results["ssgd"]["training_s"])
    return [_row(mode, result, together) for mode, result in results.items()]


def demo_plans() -> list[Plan]:
    base = Plan(
        run="demo",
        task="xor",
        mode="ssgd",
        num_workers=WORKERS,
        steps=STEPS,
        batch_sizes=(BATCH,) * WORKERS,
        pace_s=PACE_S,
        stragglers=(StragglerRule(worker=STRAGGLER, factor=FACTOR),),
        strategy=StrategyOptions(staleness=BOUND, sync_every=LOCAL_STEPS, backup_workers=1),
    )
    plans = []
    for mode in SHOWN:
        plan = replace(
            base,
            run=f"demo-{mode.name}",
            mode=mode.name,
            transport=TRANSPORTS[mode.channel][0],
            lr_scale=1 / WORKERS if mode.sums_updates else 1.0,
        )
        plans.append(single_worker_plan(plan) if mode.name == BASELINE else plan)
    return plans


def meaning(rows: list[DemoRow]) -> str:
    """Interpretation of the table, with its numbers."""
    by_mode = {row.mode: row for row in rows}
    ssgd = by_mode["ssgd"]
    asgd = by_mode["asgd"]
    ssp = by_mode["ssp"]
    single = by_mode["single"]
    return (
        f"With one worker {FACTOR:g}x slower, synchronous strategies run at its pace: ssgd spends "
        f"{ssgd.waiting or 0:.0%} of its workers' time waiting and is only "
        f"{single.seconds / ssgd.seconds:.1f}x as fast as a single worker; a staleness bound of {BOUND} "
        f"(ssp, {ssp.versus_ssgd:.2f}x ssgd) does not help against a persistent straggler; asgd does not "
        f"wait and is {asgd.versus_ssgd:.2f}x as fast as ssgd, at the cost of gradients that are "
        f"{asgd.staleness or 0:.1f} updates old on average (accuracy {asgd.accuracy:.1%} against "
        f"{ssgd.accuracy:.1%}). {TRANSPORT_NOTE}"
    )


def _row(mode: str, result: dict[str, Json], ssgd_s: float) -> DemoRow:
    metrics = result["metrics"]
    phases = result["phases_s"]
    moved = result["bytes"]
    staleness = result["staleness"]
    assert isinstance(metrics, dict), "a result holds metrics by name"
    assert isinstance(phases, dict), "a result holds seconds by phase"
    assert isinstance(moved, dict), "a result holds bytes out and in"
    seconds = _number(result["training_s"])
    busy = sum(_number(s) for s in phases.values())
    return DemoRow(
        mode=mode,
        seconds=seconds,
        samples_per_s=_number(result["samples_per_s"]),
        accuracy=_number(metrics["test_accuracy"]),
        waiting=None if MODES[mode].channel is Channel.TORCH else _number(phases["wait"]) / busy,
        megabytes=_number(moved["out"]) / 1e6,
        staleness=_number(staleness["mean"]) if isinstance(staleness, dict) else None,
        versus_ssgd=ssgd_s / seconds,
    )


def _number(value: Json) -> float:
    assert isinstance(value, int | float), f"{value!r} is a number"
    return float(value)


def _claimed(folder: Path) -> Path:
    """A new folder, so that several demos can run one after another or at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        free = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            free.mkdir()
        except FileExistsError:
            continue
        return free
    raise AssertionError("numbers do not end")
