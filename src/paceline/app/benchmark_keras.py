"""Who takes part in `paceline benchmark keras`? Keras alone, and Ray Train with the same model and images."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paceline import environ
from paceline.app.benchmark import BASELINE, Coming, Contender, Note
from paceline.app.benchmark import benchmark as run_benchmark
from paceline.benchmark.compared import Benchmark
from paceline.benchmark.keras_measured import Told, measured_of
from paceline.benchmark.keras_needs import check_cluster, check_data, check_packages
from paceline.benchmark.keras_settings import KerasSettings, check_settings
from paceline.benchmark.measured import Measured
from paceline.launchers.apart import run_apart
from paceline.tasks.cifar_synthetic import NAME as SYNTHETIC

RAY = "ray"
LOG = "log.txt"
_SIDES = "paceline.benchmark.keras_side"


def benchmark_keras(
    settings: KerasSettings,
    out: Path,
    *,
    address: str,
    repeats: int,
    tell: Callable[[Coming], None],
    note: Note,
) -> Benchmark:
    """Everything that can be refused is refused first; then both sides are run, and everything is written."""
    check_settings(settings)
    check_packages()
    settings = check_data(settings)
    check_cluster(address, settings)
    contenders = [
        Contender(name=BASELINE, title="model.fit", run=_side(settings, None)),
        Contender(name=RAY, title="Ray Train", run=_side(settings, address)),
    ]
    task = "cifar10, synthetic" if settings.data == SYNTHETIC else "cifar10"
    return run_benchmark(
        contenders,
        out,
        task=f"{task}, Keras",
        subject=RAY,
        repeats=repeats,
        seed=settings.seed,
        tell=tell,
        note=note,
    )


def _side(settings: KerasSettings, address: str | None) -> Callable[[Path, int, Note], Measured]:
    """`address` is a Ray's; None: the baseline."""
    entry = f"{_SIDES}:{'alone' if address is None else 'on_ray'}"

    def run(folder: Path, seed: int, note: Note) -> Measured:
        seeded, log = replace(settings, seed=seed), folder.resolve() / LOG
        order = {
            "settings": seeded.to_json(),
            "folder": str(folder.resolve()),
            "log": str(log),
            "address": address,
        }
        env = environ.for_tensorflow(threads=settings.threads)
        answered = run_apart(entry, [order], log=log, note=note, env=env)
        (answer,) = answered.values
        return measured_of(
            Told.of(answer), seeded, called_unix_s=answered.called_unix_s, total_s=answered.total_s
        )

    return run
