"""Checkpoint cost: the pause of a step and the slowdown of the whole run (`make bench-checkpoints`).

The same elastic run with checkpoints at the default cadence, and with none
before the end, taken in turns. Nothing here passes or fails a test.
"""

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from benchmarks.report import Ratio, tell_and_write
from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.events.read import History, read_history
from paceline.events.summary import end_ns
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

RESULTS = Path(__file__).parent / "results" / "checkpoints.json"
# name: (hidden units of two layers, samples of a batch, steps)
SIZES = {"0.06M": (240, 32, 2000), "1.0M": (1000, 32, 400), "5.8M": (2400, 16, 200)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with LocalLauncher() as launcher:
        measured = chain.from_iterable(_measure(launcher, name, options.rounds) for name in SIZES)
        tell_and_write(measured, options.output)


def _measure(launcher: LocalLauncher, name: str, rounds: int) -> Iterator[Ratio]:
    """Each round: with, without, without, with, so that a drift of the machine cancels."""
    hidden, batch, steps = SIZES[name]
    saving = _plan(hidden, batch, steps)
    silent = dataclasses.replace(saving, checkpoint_every=0)
    whole, of_a_step, of_the_time = [], [], []
    for _ in range(rounds):
        first, second = _run(launcher, saving), _run(launcher, silent)
        third, fourth = _run(launcher, silent), _run(launcher, saving)
        whole.append((_seconds(first) + _seconds(fourth)) / (_seconds(second) + _seconds(third)))
        pause_s = statistics.median([*_pauses_s(first), *_pauses_s(fourth)])
        step_s = statistics.median([_seconds(second) / steps, _seconds(third) / steps])
        of_a_step.append(pause_s / step_s)
        of_the_time.append(pause_s / (step_s * saving.checkpoint_every))
    detail = f"{name} parameters, Adam, every {saving.checkpoint_every} steps"
    rows = (
        (f"pause ÷ time between checkpoints, {name}", 0.05, of_the_time),
        (f"pause ÷ one step, {name}", 1.0, of_a_step),
        (f"time with checkpoints ÷ without, {name}", 1.05, whole),
    )
    for description, goal, result in rows:
        yield Ratio(name=description, goal=goal, at_least=False, rounds=tuple(result), detail=detail)


def _plan(hidden: int, batch: int, steps: int) -> Plan:
    config = TrainConfig(
        task="xor",
        elastic=True,
        num_workers=2,
        steps=steps,
        batch_size=batch,
        optimizer="adam",
        task_options={"hidden": hidden, "layers": 2},
    )
    return resolve(config, Facts())  # with the default cadence


def _run(launcher: LocalLauncher, plan: Plan) -> History:
    with tempfile.TemporaryDirectory() as folder:
        result = train(plan, Path(folder), SilentWatcher(), warm=launcher)
        if result["stopped_early"]:
            raise KeyboardInterrupt
        return read_history(Path(folder) / "events.jsonl")


def _seconds(history: History) -> float:
    """Seconds from the first step's start to the last one's end, without later writes."""
    rows = [row for mine in history.steps.values() for row in mine]
    return (max(map(end_ns, rows)) - min(row.start_ns for row in rows)) / 1e9


def _pauses_s(history: History) -> list[float]:
    saved = [event.fields for event in history.plain if event.kind == "checkpoint"]
    return [float(str(fields["snapshot_ns"])) / 1e9 for fields in saved]


if __name__ == "__main__":
    main()
