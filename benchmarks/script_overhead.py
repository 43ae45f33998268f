"""Cost of a training loop of one's own: examples/cnn against a Task that trains the same, interleaved.

Both have the model, the images, the augmentation, the loader processes and the schedule of examples/cnn, in
mode ssgd with two workers. Only steps within an epoch count, because the script evaluates between epochs.
The second figure is a script alone whose model has two parameters: what remains is the loop.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from benchmarks.report import Ratio
from paceline.config.values import RawSetting
from paceline.events.read import read_history
from paceline.events.summary import end_ns
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan
from paceline.tasks.torch_adapters import Scheduled
from paceline.training.progress import SilentWatcher
from paceline.training.run import train
from paceline.training.script import read_script_request
from paceline.training.session import Session

EXAMPLE = Path(__file__).parents[1] / "examples" / "cnn"
WORKERS, BATCH = 2, 64
EPOCHS, IMAGES = 3, 6144
EMPTY_STEPS = 3000
EMPTY_SCRIPT = Path(__file__).with_name("empty_script.py")


class CnnTask:
    """The objects of examples/cnn/plain.py: the file is run up to its training loop."""

    def __init__(self, *, seed: int) -> None:
        source = (EXAMPLE / "plain.py").read_text(encoding="utf-8").partition("for epoch in")[0]
        arguments = sys.argv
        sys.argv = ["plain.py", "--epochs", str(EPOCHS), "--images", str(IMAGES)]
        try:
            made: dict[str, Any] = {"__name__": "plain"}  # Any: the globals of a script
            exec(compile(source, "plain.py", "exec"), made)
        finally:
            sys.argv = arguments
        self._made = SimpleNamespace(**made)

    def model(self) -> nn.Module:
        model: nn.Module = self._made.model
        return model

    def samples(self) -> Any:  # Any: a DataLoader, which tasks may return
        return self._made.loader

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Scheduled:
        return Scheduled(self._made.optimizer, self._made.scheduler)


def measure(launcher: LocalLauncher, rounds: int) -> Iterator[Ratio]:
    script = _script_plan(launcher)
    task = replace(script, task="benchmarks.script_overhead:CnnTask", task_options={})
    pairs = []
    for _ in range(rounds):  # script, task, task, script: a drift of the machine cancels
        ours = _samples_per_s(launcher, script)
        peer = _samples_per_s(launcher, task) + _samples_per_s(launcher, task)
        pairs.append((ours + _samples_per_s(launcher, script), peer))
    detail = f"last round {pairs[-1][0] / 2:,.0f} against {pairs[-1][1] / 2:,.0f} samples/s"
    yield Ratio(
        name="samples/s, script ÷ Task, examples/cnn, ssgd, 2 workers",
        goal=0.97,
        at_least=True,
        rounds=tuple(ours / peer for ours, peer in pairs),
        detail=detail,
    )
    yield Ratio(
        name="next(loader) + optimizer.step() without work, µs",
        goal=100,
        at_least=False,
        rounds=tuple(_empty_step_us() for _ in range(rounds)),
        detail=f"median of {EMPTY_STEPS} steps",
    )


def _script_plan(launcher: LocalLauncher) -> Plan:
    flags = [
        RawSetting(key="mode", raw="ssgd", where="--mode"),
        RawSetting(key="num_workers", raw=str(WORKERS), where="--num-workers"),
    ]
    arguments = ("--epochs", str(EPOCHS), "--images", str(IMAGES))
    session = Session(folder=EXAMPLE)
    return read_script_request(session, flags, Path("train.py"), arguments, launcher).plan


def _samples_per_s(launcher: LocalLauncher, plan: Plan) -> float:
    with tempfile.TemporaryDirectory() as folder:
        train(plan, Path(folder) / "run", SilentWatcher(), warm=launcher)
        rows = read_history(Path(folder) / "run" / "events.jsonl").steps[0]
    each = IMAGES // BATCH
    took_ns = sum(
        end_ns(rows[first + each - 1]) - end_ns(rows[first]) for first in range(0, EPOCHS * each, each)
    )
    return EPOCHS * (each - 1) * BATCH * 1e9 / took_ns


def _empty_step_us() -> float:
    result = subprocess.run(
        [sys.executable, str(EMPTY_SCRIPT), str(EMPTY_STEPS)], check=True, capture_output=True, text=True
    )
    return float(result.stdout)
