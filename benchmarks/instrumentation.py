"""Cost of recording every event: the same run with `--events full` and `off`, taken in turns."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Ratio
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import EventDetail, Plan, Transport
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

STEPS = 2000


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    """Each round: full, off, off, full, so that a drift of the machine cancels."""
    ratios = []
    for _ in range(rounds):
        first = _seconds(launcher, EventDetail.FULL)
        without = _seconds(launcher, EventDetail.OFF) + _seconds(launcher, EventDetail.OFF)
        ratios.append((first + _seconds(launcher, EventDetail.FULL)) / without)
    yield Ratio(
        name="time with events ÷ without",
        goal=1.01,
        at_least=False,
        rounds=tuple(ratios),
        detail=f"ssgd, 2 workers, 0.06M parameters, batch 32, {STEPS} steps of about 0.7 ms",
    )


def _seconds(launcher: LocalLauncher, events: EventDetail) -> float:
    plan = Plan(
        run="bench",
        task="xor",
        mode="ssgd",
        num_workers=2,
        steps=STEPS,
        batch_sizes=(32, 32),
        transport=Transport.SHM,
        task_options={"hidden": 240, "layers": 2, "lr": 0.01},
        events=events,
    )
    with tempfile.TemporaryDirectory() as folder:
        result = train(plan, Path(folder), SilentWatcher(), warm=launcher)
    took = result["steps_s"]
    assert isinstance(took, float), "a finished run says how long its steps took"
    return took
