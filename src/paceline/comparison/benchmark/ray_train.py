"""Ray Train backend of the benchmarks: runs a training loop of Paceline in a trainer, unchanged.

Ray Train is what we are compared with, so nothing of it is changed but where it writes. `run_trainer` is
called in a process of its own (launchers/isolated.py), because a trainer imports its framework.
"""

import importlib
import importlib.util
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from paceline.core.errors import MissingPackageError, NotReadyError, TrainingError
from paceline.launchers.ray.client import INSTALL, RayClient, check_version, connect
from paceline.launchers.ray.resources import Bundle, capacity_table, fits
from paceline.plan.codec import Json
from paceline.plan.plan import Placement

_NEEDS = ("pyarrow", "pandas")  # what ray[train] brings
_PULSE_S = 0.25
_TRAINERS = {
    "torch": ("ray.train.torch", "TorchTrainer"),
    "tensorflow": ("ray.train.tensorflow", "TensorflowTrainer"),
}


def check_train() -> str:
    """NotReadyError unless Ray Train can be imported; its version. Nothing is imported."""
    version = check_version()
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(f"Ray Train needs {' and '.join(missing)}, which is not installed", INSTALL)
    return version


def look(order: dict[str, Json], _note: Callable[[str], None]) -> dict[str, Json]:
    """Resources of the cluster; NotReadyError if they cannot hold this number of workers."""
    with closing(_connected(order)):
        return cluster_facts()


def run_trainer(order: dict[str, Json], _note: Callable[[str], None]) -> dict[str, Json]:
    """Connect, run the trainer to its end, and disconnect.

    The order: `framework` (torch, tensorflow), `loop` (module:function, called in every worker with
    `config`), `num_workers`, `cpus_per_worker`, `address`, `storage` (a folder). The answer: `value`, what
    rank 0's loop returned, and `cluster`.
    """
    check_train()
    with closing(_connected(order)):
        cluster = cluster_facts()
        return {"value": _fit(order), "cluster": cluster}


def cluster_facts() -> dict[str, Json]:
    """Facts of the connected cluster: nodes, cpus, gpus, memory_bytes."""
    import ray

    has = ray.cluster_resources()
    return {
        "nodes": sum(1 for node in ray.nodes() if node["Alive"]),
        "cpus": float(has.get("CPU", 0.0)),
        "gpus": float(has.get("GPU", 0.0)),
        "memory_bytes": int(has.get("memory", 0.0)),
    }


def report(metrics: dict[str, float]) -> None:
    """Report metrics to Ray Train from a loop, once per epoch as in its manual."""
    import ray.train

    ray.train.report(metrics)


def _connected(order: dict[str, Json]) -> RayClient:
    address = str(order["address"])
    workers = int(str(order["num_workers"]))
    each = int(str(order["cpus_per_worker"]))
    ray = connect(address, num_cpus=workers * each)
    bundles = [Bundle(who=f"worker-{rank}", cpus=each) for rank in range(workers)]
    nodes = ray.nodes()
    if not fits(bundles, nodes, Placement.PACK):
        ray.close()
        message = f"the Ray at {address} is too small\n{capacity_table(bundles, nodes, Placement.PACK)}"
        raise NotReadyError(message, "use fewer workers, --threads-per-worker 1, or add nodes")
    return ray


def _fit(order: dict[str, Json]) -> Json:
    """Run in a thread: in the main one Ray Train would handle Ctrl-C, and exit without an error."""
    trainer = _trainer(order)
    outcome: dict[str, Any] = {}  # Any: Ray's own result, or what it raised

    def fit() -> None:
        try:
            outcome["result"] = trainer.fit()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_PULSE_S)
    if (error := outcome.get("error")) is not None:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        hint = "the log of this run has the whole traceback"
        raise TrainingError(f"Ray Train failed: {lines[-1]}", hint) from error
    value: Json = outcome["result"].return_value
    return value


def _trainer(order: dict[str, Json]) -> Any:  # Any: Ray's own
    import ray.train

    module, name = _TRAINERS[str(order["framework"])]
    kind = getattr(importlib.import_module(module), name)
    cpus = {"CPU": float(str(order["cpus_per_worker"]))}
    return kind(
        _loop,
        train_loop_config={"loop": order["loop"], "config": order["config"]},
        scaling_config=ray.train.ScalingConfig(
            num_workers=int(str(order["num_workers"])), resources_per_worker=cpus
        ),
        run_config=ray.train.RunConfig(name="trainer", storage_path=str(order["storage"])),
    )


def _loop(order: dict[str, Any]) -> Json:  # Any: JSON, as Ray hands it over
    module, _, name = str(order["loop"]).partition(":")
    answer: Json = getattr(importlib.import_module(module), name)(order["config"])
    return answer
