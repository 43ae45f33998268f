"""CIFAR-10 on one GPU: accuracy and speed of one worker, ssgd and ddp over ten epochs.

`python -m benchmarks.gpu_cifar --data FOLDER`: the same network, images, global batch and number of epochs
for each; two workers of `ssgd` and `ddp` share the GPU (NCCL refuses that, so their gradients go by gloo).
Every row is printed and written as soon as it is there. What would not fit in `--budget-s` is stopped or left
out, and reported. Goals: one worker reaches 70 %, the others end within 2 points of it.
"""

import argparse
import json
import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.config.environment import probe_machine
from paceline.config.train_config import TrainConfig
from paceline.core.clock import monotonic_s
from paceline.core.errors import PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import Json
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve
from paceline.tasks.cifar10.data import find_data, read_images
from paceline.training.progress import Progress
from paceline.training.run import train

RESULT = Path(__file__).parent / "results" / "gpu_cifar.json"
SINGLE_GOAL = 0.70
POINTS = 0.02
WARM_STEPS = 20  # excluded from the speed
PROOF_STEPS = 40  # steps needed to predict the total time


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    mode: str
    workers: int
    outcome: str  # "finished", or why it was not
    accuracy: float | None = None
    loss: float | None = None
    seconds: float | None = None  # the whole run, its start included
    epoch_s: float | None = None
    images_per_s: float | None = None

    def line(self) -> str:
        def shown(value: float | None, form: str) -> str:
            return "-" if value is None else format(value, form)

        return (
            f"{self.mode:<8}{self.workers:>8}{shown(self.accuracy, '.2%'):>10}{shown(self.loss, '.3f'):>9}"
            f"{shown(self.seconds, '.1f'):>10}{shown(self.epoch_s, '.2f'):>9}"
            f"{shown(self.images_per_s, ',.0f'):>10}  {self.outcome}"
        )


HEAD = f"{'mode':<8}{'workers':>8}{'accuracy':>10}{'loss':>9}{'seconds':>10}{'s/epoch':>9}{'images/s':>10}"


class Budget:
    """Watches a run, and requests a stop as soon as the predicted time exceeds the limit."""

    def __init__(self, launcher: LocalLauncher, limit_s: float) -> None:
        self._launcher, self._limit_s = launcher, limit_s
        self._first: Progress | None = None
        self.foretold_s: float | None = None
        self.has_stopped = False

    def progress(self, progress: Progress) -> None:
        if progress.step < WARM_STEPS or self.has_stopped:
            return
        if self._first is None:
            self._first = progress
        made = progress.step - self._first.step
        if made >= PROOF_STEPS:
            each_s = (progress.elapsed_s - self._first.elapsed_s) / made
            self.foretold_s = progress.elapsed_s + each_s * (progress.total_steps - progress.step)
        if (self.foretold_s or progress.elapsed_s) > self._limit_s:
            self.has_stopped = True
            self._launcher.stop()

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)


def plan_of(mode: str, settings: argparse.Namespace, images: int) -> Plan:
    workers = 1 if mode == "single" else settings.workers
    options: dict[str, bool | int | float | str] = {"amp": settings.amp, "lr": settings.lr}
    if settings.subset is not None:
        options |= {"subset": settings.subset, "test_subset": settings.test_subset or settings.subset}
    steps = math.ceil(settings.epochs * images / settings.batch)
    config = TrainConfig(
        task="cifar10",
        data=str(settings.data),
        task_options=options,
        mode=mode,
        num_workers=workers,
        steps=steps,
        batch_size=settings.batch // workers,
        device=settings.device,
        lr_schedule="cosine",
        lr_warmup=steps // 20,
        timeout=120.0,
        seed=settings.seed,
    )
    return resolve(config, probe_machine(config))


def measure(launcher: LocalLauncher, plan: Plan, limit_s: float, epochs: float) -> Row:
    budget = Budget(launcher, limit_s)
    started_s = monotonic_s()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = train(plan, Path(folder) / "run", budget, warm=launcher)
    except PacelineError as error:
        return Row(mode=plan.mode, workers=plan.num_workers, outcome=f"failed: {error.what} ({error.hint})")
    seconds = monotonic_s() - started_s
    outcome = "finished"
    if result["stopped_early"]:
        foretold = "?" if budget.foretold_s is None else f"{budget.foretold_s:.0f}"
        outcome = f"stopped: it would take {foretold} s, and {limit_s:.0f} s are left"
    finished = 1.0 if not result["stopped_early"] else _number(result, "samples") / plan.total_samples
    metrics = result["metrics"]
    assert isinstance(metrics, dict), "a result has metrics"
    return Row(
        mode=plan.mode,
        workers=plan.num_workers,
        outcome=outcome,
        accuracy=_number(metrics, "test_accuracy"),
        loss=_number(metrics, "test_loss"),
        seconds=seconds,
        epoch_s=_number(result, "training_s") / (epochs * finished) if finished else None,
        images_per_s=_number(result, "samples_per_s"),
    )


def _number(where: dict[str, Json], name: str) -> float:
    return float(str(where[name]))


def verdicts(rows: list[Row]) -> list[str]:
    by_mode = {
        row.mode: row.accuracy for row in rows if row.outcome == "finished" and row.accuracy is not None
    }
    single = by_mode.pop("single", None)
    if single is None:
        return ["single did not finish: nothing to compare with"]
    results = [
        f"single: {single:.2%}, goal {SINGLE_GOAL:.0%}: {'met' if single >= SINGLE_GOAL else 'MISSED'}"
    ]
    for mode, accuracy in by_mode.items():
        verdict = "met" if abs(accuracy - single) <= POINTS else "MISSED"
        results.append(f"{mode}: {100 * (accuracy - single):+.2f} points, goal within 2: {verdict}")
    return results


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder cifar-10-batches-py, or its parent"
    )
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--batch", type=int, default=256, help="images of a step, over all workers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--modes", default="single,ssgd,ddp")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--amp", choices=["full", "bf16"], default="bf16")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--subset", type=int, help="only so many training images, and as many test images")
    parser.add_argument("--test-subset", type=int)
    parser.add_argument("--budget-s", type=float, default=280.0, help="for everything together")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def main() -> None:
    settings, started_s = _parse_args(), monotonic_s()
    images = len(read_images(find_data(str(settings.data)), subset=settings.subset).training[1])
    print(
        f"{images} images, {settings.epochs:g} epochs, {settings.batch} images a step, {settings.amp}, "
        f"on {settings.device}"
    )
    print(HEAD, flush=True)
    rows: list[Row] = []
    with LocalLauncher() as launcher:
        for mode in settings.modes.split(","):
            left_s = settings.budget_s - (monotonic_s() - started_s)
            plan = plan_of(mode, settings, images)
            if left_s < 10:
                rows.append(
                    Row(mode=mode, workers=plan.num_workers, outcome=f"left out: {left_s:.0f} s are left")
                )
            else:
                rows.append(measure(launcher, plan, left_s, settings.epochs))
            print(rows[-1].line(), flush=True)
            _write(settings, rows)
    for text in verdicts(rows):
        print(text, flush=True)


def _write(options: argparse.Namespace, rows: list[Row]) -> None:
    settings = {name: str(value) for name, value in vars(options).items()}
    results = {"schema": "paceline.bench/1", "settings": settings, "rows": [asdict(row) for row in rows]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**results, "verdicts": verdicts(rows)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
