"""Subprocess entry points of `paceline benchmark keras`: `alone` and `on_ray` (launchers/isolated.py).

The order: `settings`, `folder` (of this turn), `log` (where all that is printed goes), and Ray's `address`.
The answer: `images`, `epochs`, `end`, and of Ray its `cluster`; keras_schema.py defines them.
"""

import json
import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.comparison.benchmark.keras_data import (
    Pictures,
    own_pictures,
    part_of_baseline,
    part_of_worker,
    pictures_of,
)
from paceline.comparison.benchmark.keras_own import Arrays, OwnFunction
from paceline.comparison.benchmark.keras_schema import (
    KerasSettings,
    check_gpus,
    format_cluster,
    format_epoch,
    format_restart,
)
from paceline.core import environ
from paceline.core.errors import PacelineError, TrainingError
from paceline.plan.codec import Json
from paceline.tasks.cifar10.data import SYNTHETIC as SYNTHETIC
from paceline.tasks.cifar10.data import find_data, read_images, synthetic_images

_DEATH = re.compile(r"Worker exit type: (\w+) Worker exit detail: ([^.\n]*)")


def failure_of(error: BaseException, log: str) -> TrainingError:
    """The first worker that is to blame, else the trainer itself; the log has everything."""
    hint = f"see the workers' output in {log}"
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, cause = min(failures.items(), key=lambda item: (_is_consequence(item[1]), item[0]))
        return TrainingError(f"worker {rank} of Ray Train failed: {sentence(cause)}", hint)
    cause = getattr(error, "controller_failure", error)
    return TrainingError(f"Ray Train failed: {sentence(cause)}", hint)


def sentence(error: BaseException) -> str:
    """Message of an error, without the traceback in its text."""
    text = str(error).strip()
    if (death := _DEATH.search(text)) is not None:
        return f"its process died ({death[2].strip()})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    has_traceback = any(line.startswith("Traceback") for line in lines)
    return lines[-1] if has_traceback else lines[0]


def _is_consequence(error: BaseException) -> bool:
    """Whether the error follows from a lost worker: collective operations of the others then fail too."""
    text = str(error)
    return "UnavailableError" in text or "AbortedError" in text or "CancelledError" in text


LogFunction = Callable[[str], None]
Order = Mapping[str, Any]  # Any: JSON


def alone(order: Order, note: LogFunction) -> dict[str, Json]:
    """The baseline: `model.fit` in this process."""
    return _with_log(order, lambda: _train_alone(order, note))


def on_ray(order: Order, note: LogFunction) -> dict[str, Json]:
    """Ray Train's TensorflowTrainer; this process is its driver."""
    return _with_log(order, lambda: _train_on_ray(order, note))


def _with_log(order: Order, train: Callable[[], dict[str, Json]]) -> dict[str, Json]:
    """Turn any failure into one error that names the log."""
    try:
        return train()
    except PacelineError:
        raise
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        raise TrainingError(
            f"TensorFlow failed: {type(error).__name__}: {first}", f"see {order['log']}"
        ) from error


def _train_alone(order: Order, note: LogFunction) -> dict[str, Json]:
    from paceline.comparison.benchmark import keras_backend

    settings = KerasSettings(**order["settings"])
    pictures = _read(settings)
    epochs: list[Json] = []

    def on_epoch(seen: dict[str, Json], _capture: object) -> None:
        epochs.append(seen)
        note(format_epoch(seen, settings.epochs))

    keras_backend.prepare(settings)
    scale = keras_backend.Normalisation(means=pictures.means, deviations=pictures.deviations)
    end = keras_backend.train(settings, part_of_baseline(pictures, settings), scale, on_epoch)
    return {
        "images": asdict(pictures.counts),
        "epochs": epochs,
        "end": {**keras_backend.versions(), **end},
        "cluster": None,
    }


def _train_on_ray(order: Order, note: LogFunction) -> dict[str, Json]:
    environ.prepare_ray()  # before Ray is imported
    from paceline.comparison.benchmark import keras_ray as ray_train
    from paceline.comparison.benchmark.keras_ray import train_loop

    settings = KerasSettings(**order["settings"])
    pictures = _read(settings)
    if settings.model:  # a model that cannot be imported is reported before Ray is started
        OwnFunction(noun="model", path=settings.model, folder=settings.code).load()
    needed = settings.num_workers * settings.threads
    # A Ray of our own pretends to have what is needed: workers share processors.
    ray_train.connect(order["address"], num_cpus=max(needed, len(os.sched_getaffinity(0))))
    try:
        cluster = ray_train.cluster()
        note(format_cluster(cluster))
        check_gpus(float(str(cluster["gpus"])), settings, order["address"])
        rounds = ray_train.fit(
            train_loop,
            {"order": json.dumps({"settings": settings.to_json(), "normalisation": _scale(pictures)})},
            [part_of_worker(pictures, settings, rank) for rank in range(settings.num_workers)],
            settings=settings,
            folder=Path(order["folder"]),
        )
        epochs, end = followed(rounds, settings, order["log"], note)
    except ray_train.FailedError as error:
        raise failure_of(error.cause, order["log"]) from error
    finally:
        ray_train.close()
    return {"images": asdict(pictures.counts), "epochs": [*epochs], "end": end, "cluster": cluster}


def followed(
    rounds: Iterable[list[dict[str, Json]]], settings: KerasSettings, log: str, note: LogFunction
) -> tuple[list[dict[str, Json]], dict[str, Json]]:
    """Epochs in their order and the end; an epoch that ran again after a failure counts once."""
    epochs: dict[int, dict[str, Json]] = {}
    end: dict[str, Json] = {}
    failures = 0
    for reports in rounds:
        match reports[0]["ev"]:
            case "failure":
                failures += 1
                if failures <= settings.max_failures:
                    note(format_restart(reports[0], after=max(epochs, default=0)))
            case "end":
                end = end_of(reports, log)
            case _:
                # Keras has taken the mean over all workers, so all report the same.
                epochs[int(str(reports[0]["epoch"]))] = reports[0]
                note(format_epoch(reports[0], settings.epochs))
    if failures:
        end = {**end, "restarts": failures}
    return [epochs[number] for number in sorted(epochs)], end


def _read(settings: KerasSettings) -> Pictures:
    if settings.dataset:
        own = OwnFunction(noun="dataset", path=settings.dataset, folder=settings.code)
        return own_pictures(Arrays.of(own.call(), own), settings, own)
    if settings.data == SYNTHETIC:
        read = synthetic_images(settings.seed, count=settings.subset, test_count=settings.test_subset)
    else:
        place = find_data(settings.data)
        read = read_images(place, subset=settings.subset, test_subset=settings.test_subset)
    return pictures_of(read, settings)


def _scale(pictures: Pictures) -> dict[str, Json]:
    return {"means": [*pictures.means], "deviations": [*pictures.deviations]}


def end_of(reports: list[dict[str, Json]], log: str) -> dict[str, Json]:
    """Report of rank 0, after a check that all ended with the same weights."""
    first = min(reports, key=lambda report: int(str(report["rank"])))
    if len({report["weights_sha256"] for report in reports}) != 1 or first["replicas"] != len(reports):
        message = "the workers ended with different weights, so they did not train one model"
        raise TrainingError(message, f"see {log}")
    busy = [float(str(report["processor_seconds"])) for report in reports]
    return {**first, "processor_seconds": sum(busy)}
