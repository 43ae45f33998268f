"""Ray Train backend of `paceline benchmark keras`: a TensorflowTrainer and its reports.

It is imported in processes of its own alone: Ray's trainer imports all of TensorFlow. What workers report
comes back as lines of JSON in a file beside the driver, where Ray's controller runs too. What workers print
goes to the driver's own output.
"""

import json
import logging
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.tensorflow import TensorflowTrainer

from paceline.comparison.benchmark import keras_backend
from paceline.comparison.benchmark.keras_backend import Normalisation
from paceline.comparison.benchmark.keras_checkpoint import State, load, save
from paceline.comparison.benchmark.keras_schema import KerasSettings
from paceline.core import environ
from paceline.core.clock import SystemClock, unix_now_s
from paceline.core.errors import NotReadyError, PacelineError
from paceline.plan.codec import Json

POLL_S = 0.2
Loop = Callable[[dict[str, object]], None]


class FailedError(Exception):
    """Error of Ray Train."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def connect(address: str, *, num_cpus: int) -> None:
    """Connect to a cluster, or (`local`) to a Ray started here; workers' output is forwarded here."""
    options: dict[str, Any] = {"log_to_driver": True, "logging_level": logging.INFO}
    if address == "local":
        options |= {"num_cpus": num_cpus, "include_dashboard": False}
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        hint = "the same versions of Ray and Python are needed here and on every node"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotReadyError(f"Ray at {address} refused the connection: {reason}", hint) from error
    for number, handler in before.items():  # Ray has put its own there
        signal.signal(number, handler)


def close() -> None:
    ray.shutdown()


def cluster() -> dict[str, Json]:
    """Total resources of the cluster."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def total(of: str) -> float:
        return sum(float(resources.get(of, 0)) for resources in alive)

    return {
        "nodes": len(alive),
        "cpus": total("CPU"),
        "gpus": total("GPU"),
        "memory_bytes": int(total("memory")),
        "ray": str(ray.__version__),
    }


class ReportsFile(UserCallback):  # type: ignore[misc]  # Ray has no types
    """Runs in Ray's controller, on the driver's node: writes each round of reports."""

    def __init__(self, path: str) -> None:
        self.path = path

    def after_report(self, run_context: object, metrics: list[dict[str, Any]], checkpoint: object) -> None:
        self._write(metrics)

    def after_exception(self, run_context: object, worker_exceptions: Mapping[int, Exception]) -> None:
        ranks = ", ".join(str(rank) for rank in sorted(worker_exceptions))
        self._write([{"ev": FAILURE, "ranks": ranks}])

    def _write(self, reports: list[dict[str, Any]]) -> None:
        with Path(self.path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(reports) + "\n")


def fit(
    loop: Loop,
    config: Mapping[str, object],
    parts: Sequence[object],
    *,
    settings: KerasSettings,
    folder: Path,
) -> Iterator[list[dict[str, Json]]]:
    """Train with one worker for each part; every round of reports, one from each worker, as it comes.

    FailedError when Ray Train fails.
    """
    reports = folder / "reports.jsonl"
    reports.write_text("")
    trainer = TensorflowTrainer(
        loop,
        # Only its own part is taken by a worker; the parts lie in Ray's store.
        train_loop_config={**config, "parts": [ray.put(part) for part in parts]},
        scaling_config=ScalingConfig(
            num_workers=len(parts),
            use_gpu=settings.use_gpu,  # one for each worker
            resources_per_worker={"CPU": settings.threads},
        ),
        run_config=RunConfig(
            # Of this run alone: under a name that is in the storage, Ray Train would resume that run.
            name=f"keras-{folder.name}-{unix_now_s():.3f}",
            storage_path=settings.storage or str(folder / "ray"),
            callbacks=[ReportsFile(str(reports))],
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=settings.max_failures, controller_failure_limit=0),
        ),
    )
    yield from _followed(trainer, reports)


def _followed(trainer: Any, reports: Path) -> Iterator[list[dict[str, Json]]]:  # Any: Ray's own
    raised: list[BaseException] = []

    def run() -> None:
        try:
            trainer.fit()
        except BaseException as error:  # sent to the process that follows, below
            raised.append(error)

    # Not in the main thread: signals stay with this process, and are handled while it trains.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with reports.open(encoding="utf-8") as file:
        is_over = False
        while not is_over:
            is_over = not thread.is_alive()  # checked before the last read
            yield from _new_lines(file)
            if not is_over:
                SystemClock().sleep(POLL_S)
    if raised:
        raise FailedError(raised[0]) from raised[0]


def _new_lines(file: Any) -> Iterator[list[dict[str, Json]]]:  # Any: a text file
    while True:
        place = file.tell()
        line = file.readline()
        if not line.endswith("\n"):  # half of one: it is read when it is whole
            file.seek(place)
            return
        yield json.loads(line)


# What follows is for the loop, inside a worker.


def worker_rank() -> int:
    return int(ray.train.get_context().get_world_rank())


def take(parts: object, number: int) -> Any:  # Any: any stored object
    assert isinstance(parts, list), "one part for each worker"
    return ray.get(parts[number])


def report(values: Mapping[str, Json]) -> None:
    """All workers must do so equally often."""
    ray.train.report(dict(values))


def report_checkpoint(values: Mapping[str, Json], state: State) -> None:
    """The same with a checkpoint, which rank 0 writes; Ray Train copies it to its storage."""
    with TemporaryDirectory() as folder:
        checkpoint = None
        if worker_rank() == 0:
            save(state, Path(folder))
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report(dict(values), checkpoint=checkpoint)


def newest_state() -> State | None:
    """State of the newest checkpoint; None in the first group of workers."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return load(Path(folder))


# Ray Train calls `train_loop` in each worker's process, with TF_CONFIG set. Every epoch is reported by all
# workers, and at the end each says what it ended with. After a failure Ray Train starts all workers again.

EPOCH = "epoch"
END = "end"
FAILURE = "failure"


def train_loop(config: dict[str, object]) -> None:
    try:
        _train(config)
    except PacelineError as error:
        traceback.print_exc()
        # Ray sends the error to its controller by pickle, which would call it with other arguments.
        raise RuntimeError(str(error)) from None


def _train(config: dict[str, object]) -> None:
    order = json.loads(str(config["order"]))
    settings = KerasSettings(**order["settings"])
    rank = worker_rank()
    # On a node of a cluster: a model of the user that imports tensorflow.keras gets tf_keras.
    environ.set_default_variables(TF_USE_LEGACY_KERAS="1")
    keras_backend.prepare(settings)
    strategy = keras_backend.multi_worker_strategy()  # first of all that TensorFlow does
    part = take(config["parts"], rank)

    def on_epoch(seen: dict[str, Json], capture: Callable[[], State]) -> None:
        if settings.max_failures:
            report_checkpoint({"ev": EPOCH, **seen}, capture())
        else:
            report({"ev": EPOCH, **seen})

    done = keras_backend.train(
        settings,
        part,
        Normalisation(**order["normalisation"]),
        on_epoch,
        rank=rank,
        strategy=strategy,
        state=newest_state(),
    )
    replicas = int(strategy.num_replicas_in_sync)
    report({"ev": END, "rank": rank, "replicas": replicas, **keras_backend.versions(), **done})
