"""GPU fast paths, as ratios to the plain implementation on one GPU in the same run.

`python -m benchmarks.gpu`: virtual workers by one vmapped pass against one
after another, and a store in the GPU's memory against one over TCP.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Device, EventDetail, Launcher, Plan, Transport
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

ROUNDS = 3


def _wall_s(plan: Plan, launcher: LocalLauncher) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return float(str(train(plan, Path(folder) / "run", SilentWatcher(), warm=launcher)["wall_s"]))


def _steps_s(plan: Plan, launcher: LocalLauncher) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return float(str(train(plan, Path(folder) / "run", SilentWatcher(), warm=launcher)["steps_s"]))


def _plan(mode: str, workers: int, **changes: object) -> Plan:
    base = Plan(
        run="bench",
        task="digits",
        task_options={"hidden": 1024},
        mode=mode,
        num_workers=workers,
        steps=100,
        batch_sizes=(32,) * workers,
        device=Device.CUDA,
        events=EventDetail.OFF,
        lr_scale=1 / workers if mode == "asgd" else 1.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # the names are Plan's own


def vmapped(launcher: LocalLauncher, workers: int) -> dict[str, object]:
    """Time of a whole run beyond that of one with 10 steps: start-up and first kernels do not count."""
    plan = _plan("ssgd", workers, launcher=Launcher.VIRTUAL, transport=Transport.NONE, pace_s=0.01)
    ratios = []
    for _ in range(ROUNDS):
        long, short = replace(plan, steps=110), replace(plan, steps=10)
        first = _wall_s(long, launcher) - _wall_s(short, launcher)
        many = _wall_s(replace(long, vmap=True), launcher) - _wall_s(replace(short, vmap=True), launcher)
        ratios.append(first / many)
    return {"what": f"{workers} virtual workers, vmapped over one by one", "ratios": ratios}


def stores(launcher: LocalLauncher, hidden: int) -> dict[str, object]:
    plan = _plan("asgd", 4, task_options={"hidden": hidden}, steps=200)
    ratios = []
    for _ in range(ROUNDS):
        tcp = _steps_s(replace(plan, transport=Transport.TCP), launcher)
        ipc = _steps_s(replace(plan, transport=Transport.CUDA_IPC), launcher)
        ratios.append(tcp / ipc)
    size = (64 + 1 + 10) * hidden * 4 / 1e6
    return {"what": f"asgd, 4 workers, {size:.1f} MB: CUDA IPC over TCP", "ratios": ratios}


def main() -> None:
    with LocalLauncher() as launcher:
        rows = [vmapped(launcher, 8), vmapped(launcher, 64), stores(launcher, 1024), stores(launcher, 65536)]
    for row in rows:
        ratios = row["ratios"]
        assert isinstance(ratios, list), "each row has its ratios"
        print(f"{row['what']}: {statistics.median(ratios):.2f}x  {[round(r, 2) for r in ratios]}")
    json.dump(rows, sys.stdout)
    print()


if __name__ == "__main__":
    main()
