"""Runner of `paceline benchmark keras`: Keras alone, and Ray Train with the same model and images."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paceline.comparison.benchmark.keras_own import OwnFunction, check_own
from paceline.comparison.benchmark.keras_schema import (
    KerasSettings,
    ProcessReport,
    check_gpus,
    check_settings,
    measured_of,
)
from paceline.comparison.benchmark.keras_sides import RAY, Side, earlier_runs, write_settings
from paceline.comparison.benchmark.runner import Contender, LogFunction, UpcomingRun
from paceline.comparison.benchmark.runner import benchmark as run_benchmark
from paceline.comparison.benchmark.schema import Benchmark, Measured
from paceline.core import environ
from paceline.core.errors import ConfigError, MissingPackageError, NotReadyError, Problem
from paceline.launchers.isolated import run_isolated
from paceline.launchers.ray import client
from paceline.launchers.ray.resources import Bundle, Node, capacity_table, fits
from paceline.plan.codec import Json
from paceline.plan.plan import Placement
from paceline.tasks.cifar10.data import SYNTHETIC as SYNTHETIC
from paceline.tasks.cifar10.data import find_data

INSTALL = "pip install 'paceline[keras]'"
OLDEST = (2, 21)  # with the Ray, Keras and protobuf that go with it
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu")
_OF_RAY_TRAIN = ("pyarrow", "pandas")


def check_packages(
    version_of: Callable[[str], str] = importlib.metadata.version,
    is_there: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
    *,
    only: Side | None = None,
) -> None:
    """NotReadyError unless a TensorFlow, its Keras and a Ray that we know are installed.

    The baseline alone needs no Ray.
    """
    tensorflow = _first(_TENSORFLOWS, version_of)
    if tensorflow is None:
        raise MissingPackageError("benchmark keras needs TensorFlow, which is not installed", INSTALL)
    if _two(tensorflow) < OLDEST:
        minimum = ".".join(map(str, OLDEST))
        raise NotReadyError(
            f"TensorFlow {tensorflow} is installed, but {minimum} or later is needed", INSTALL
        )
    keras = _first(("tf-keras",), version_of)
    if keras is None:
        message = "benchmark keras needs tf-keras, the Keras for several workers, which is not installed"
        raise NotReadyError(message, INSTALL)
    if _two(keras) != _two(tensorflow):
        version = ".".join(map(str, _two(tensorflow)))
        message = f"tf-keras {keras} and TensorFlow {tensorflow} are installed, but their versions must match"
        raise NotReadyError(message, f"pip install 'tf-keras=={version}.*'")
    if only is Side.BASELINE:
        return
    client.check_version(version_of)
    missing = [name for name in _OF_RAY_TRAIN if not is_there(name)]
    if missing:
        raise MissingPackageError(f"Ray Train needs {' and '.join(missing)}, which is not installed", INSTALL)


def check_data(settings: KerasSettings) -> KerasSettings:
    """ConfigError unless there are images to read; their place is a full path afterwards."""
    if settings.data == SYNTHETIC or settings.dataset:
        return settings
    return replace(settings, data=str(find_data(settings.data or None).resolve()))


def absolute_storage(settings: KerasSettings) -> KerasSettings:
    """A URI stays one; a folder becomes a full path, which every process understands."""
    if not settings.storage or "://" in settings.storage:
        return settings
    return replace(settings, storage=str(Path(settings.storage).resolve()))


def check_functions(settings: KerasSettings) -> None:
    """ConfigError unless the user's modules can be found; they are imported in the process of a side."""
    named = {"model": settings.model, "dataset": settings.dataset}
    own = [OwnFunction(noun=noun, path=path, folder=settings.code) for noun, path in named.items() if path]
    check_own(own)


def local_gpus() -> int:
    """NVIDIA GPUs of this machine, without a library."""
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])


def check_cluster(address: str, settings: KerasSettings, count_gpus: Callable[[], int] = local_gpus) -> None:
    """An existing cluster must answer, and be large enough; one that is started here lacks at most GPUs."""
    if address.startswith("ray://"):
        message = (
            f"address is {address}, but Ray Train runs on a machine of the cluster, not through Ray's client"
        )
        hint = "run this on a node with --address auto, as scripts/run-benchmark.sh does"
        raise ConfigError([Problem(message, hint, "--address")])
    if address == "local":
        check_gpus(count_gpus() if settings.use_gpu else 0, settings, address)
        return
    ray = client.connect(address, num_cpus=1)
    try:
        nodes = ray.nodes()
    finally:
        ray.close()
    check_gpus(sum(node.gpus for node in nodes), settings, address)
    if (text := too_small(nodes, settings)) is not None:
        hint = "use fewer --num-workers or --threads-per-worker, or add nodes"
        raise NotReadyError(f"the Ray at {address} is too small\n{text}", hint)


def too_small(nodes: list[Node], settings: KerasSettings) -> str | None:
    """Required and available resources; None if they suffice."""
    ranks = range(settings.num_workers)
    gpus = 1 if settings.use_gpu else 0
    bundles = [Bundle(who=f"worker-{rank}", cpus=settings.threads, gpus=gpus) for rank in ranks]
    return None if fits(bundles, nodes, Placement.PACK) else capacity_table(bundles, nodes, Placement.PACK)


def _first(names: tuple[str, ...], version_of: Callable[[str], str]) -> str | None:
    for name in names:
        try:
            return version_of(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _two(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


LOG = "log.txt"
_SIDES = "paceline.comparison.benchmark.keras_process"


def benchmark_keras(
    settings: KerasSettings,
    out: Path,
    *,
    address: str,
    repeats: int,
    only: Side | None,
    notify: Callable[[UpcomingRun], None],
    note: LogFunction,
) -> Benchmark:
    """Everything that can be refused is refused first; then both sides are run, and everything is written.

    With `only`, that side is run, and compared with an earlier run of the other in `out`, if there is one.
    """
    check_settings(settings)
    check_functions(settings)
    check_packages(only=only)
    settings = absolute_storage(check_data(settings))
    if only is not Side.BASELINE:
        check_cluster(address, settings)
    recorded = {**settings.compared(), "repeats": repeats}
    earlier = {} if only is None else _earlier_side(out, only.other, recorded, repeats)
    sides = (Side.BASELINE, Side.DISTRIBUTED) if only is None else (only,)
    return run_benchmark(
        [_contender(side, settings, address, recorded) for side in sides],
        out,
        task=_task(settings),
        subject=RAY,
        repeats=repeats,
        seed=settings.seed,
        notify=notify,
        note=note,
        earlier=earlier,
    )


def _task(settings: KerasSettings) -> str:
    data = "cifar10, synthetic" if settings.data == SYNTHETIC else settings.dataset or "cifar10"
    return f"{data}, {settings.model or 'Keras'}"


def _earlier_side(
    out: Path, side: Side, recorded: dict[str, Json], repeats: int
) -> dict[str, list[Measured]]:
    runs = earlier_runs(out, side, recorded, repeats=repeats)
    return {side.contender: runs} if runs else {}


_TITLES = {Side.BASELINE: "model.fit", Side.DISTRIBUTED: "Ray Train"}


def _contender(side: Side, settings: KerasSettings, address: str, recorded: dict[str, Json]) -> Contender:
    train = _side(settings, address if side is Side.DISTRIBUTED else None)

    def run(folder: Path, seed: int, note: LogFunction) -> Measured:
        write_settings(recorded, folder)
        return train(folder, seed, note)

    return Contender(name=side.contender, title=_TITLES[side], run=run)


def _side(settings: KerasSettings, address: str | None) -> Callable[[Path, int, LogFunction], Measured]:
    """`address` is a Ray's; None: the baseline."""
    entry = f"{_SIDES}:{'alone' if address is None else 'on_ray'}"

    def run(folder: Path, seed: int, note: LogFunction) -> Measured:
        seeded = replace(settings, seed=seed)
        log = folder.resolve() / LOG
        order = {
            "settings": seeded.to_json(),
            "folder": str(folder.resolve()),
            "log": str(log),
            "address": address,
        }
        env = environ.for_tensorflow(threads=settings.threads)
        answered = run_isolated(entry, [order], log=log, note=note, env=env)
        (answer,) = answered.values
        return measured_of(
            ProcessReport.of(answer), seeded, called_unix_s=answered.called_unix_s, total_s=answered.total_s
        )

    return run
