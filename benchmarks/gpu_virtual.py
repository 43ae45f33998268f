"""Virtual workers on one GPU against processes on the CPUs, in samples per second.

`python -m benchmarks.gpu_virtual`: `single`, and `localsgd` and `diloco` with 8 workers, for `charlm` and
`cifar10` (synthetic images): on the GPU all workers are in one process, on the CPUs each is one, and gloo
carries their messages. A virtual run's time is that of a long run less that of a short one, so that starting
does not count.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paceline.config.environment import probe_machine
from paceline.config.train_config import TrainConfig
from paceline.core.errors import PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.plan.resolve import resolve
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

Row = dict[str, object]
TASKS: dict[str, dict[str, str | None]] = {"charlm": {"data": None}, "cifar10": {"data": "synthetic"}}


def _train(config: TrainConfig, launcher: LocalLauncher) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return dict(
            train(
                resolve(config, probe_machine(config)), Path(folder) / "run", SilentWatcher(), warm=launcher
            )
        )


def _number(value: object) -> float:
    return float(str(value))


def in_one_process(task: str, mode: str, options: "Options", launcher: LocalLauncher) -> Row:
    """On the GPU; `single` does the whole batch at once."""
    is_single = mode == "single"
    workers = 1 if is_single else options.workers
    walls_s = []
    for steps in (options.steps + options.short, options.short):
        config = TrainConfig(
            task=task,
            mode=mode,
            num_workers=workers,
            batch_size=options.batch * (options.workers // workers),
            steps=steps,
            device=options.device,
            launcher=None if is_single else "virtual",
            data=TASKS[task]["data"],
            events="off",
        )
        result = _train(config, launcher)
        walls_s.append(_number(result["steps_s"] if is_single else result["wall_s"]))
    samples = options.steps * options.batch * options.workers
    return {
        "what": f"{task}, {mode}, {workers} virtual on the GPU"
        if not is_single
        else f"{task}, single on the GPU",
        "samples_per_s": samples / max(1e-9, walls_s[0] - walls_s[1]),
    }


def in_processes(task: str, mode: str, options: "Options", launcher: LocalLauncher) -> Row:
    config = TrainConfig(
        task=task,
        mode=mode,
        num_workers=options.workers,
        batch_size=options.batch,
        steps=options.cpu_steps,
        device="cpu",
        transport="gloo",
        data=TASKS[task]["data"],
    )
    result = _train(config, launcher)
    return {
        "what": f"{task}, {mode}, {options.workers} processes on {os.cpu_count()} CPUs, gloo",
        "samples_per_s": _number(result["samples_per_s"]),
    }


class Options(argparse.Namespace):
    workers: int
    batch: int
    steps: int
    short: int
    cpu_steps: int
    device: str
    tasks: str


def rows(options: Options) -> Iterator[Row]:
    with LocalLauncher() as launcher:
        for task in options.tasks.split(","):
            for mode in ("single", "localsgd", "diloco"):
                yield _or_why_not(in_one_process, task, mode, options, launcher)
            for mode in ("localsgd", "diloco"):
                yield _or_why_not(in_processes, task, mode, options, launcher)


def _or_why_not(measure: object, task: str, mode: str, options: Options, launcher: LocalLauncher) -> Row:
    assert callable(measure), "one of the two above"
    try:
        row: Row = measure(task, mode, options, launcher)
    except PacelineError as error:  # keep the other rows
        return {"what": f"{task}, {mode}", "failed": str(error)[-500:]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--short", type=int, default=10)
    parser.add_argument("--cpu-steps", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tasks", default=",".join(TASKS))
    for row in rows(parser.parse_args(namespace=Options())):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
