"""What does each side of `paceline benchmark keras` do in its own process? `alone` or `on_ray`, by apart.py.

The order: `settings`, `folder` (of this turn), `log` (where all that is printed goes), and Ray's `address`.
The answer: `images`, `epochs`, `end`, and of Ray its `cluster`; keras_measured.py says what they mean.
"""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline import environ
from paceline.benchmark.keras_failure import failure_of
from paceline.benchmark.keras_measured import line_of
from paceline.benchmark.keras_parts import Pictures, part_of_baseline, part_of_worker, pictures_of
from paceline.benchmark.keras_settings import KerasSettings
from paceline.errors import PacelineError, TrainingError
from paceline.plan.codec import Json
from paceline.tasks.cifar_files import find, read_images
from paceline.tasks.cifar_synthetic import NAME as SYNTHETIC
from paceline.tasks.cifar_synthetic import synthetic_images

Note = Callable[[str], None]
Order = Mapping[str, Any]  # Any: JSON


def alone(order: Order, note: Note) -> dict[str, Json]:
    """The baseline: `model.fit` in this process."""
    return _with_log(order, lambda: _train_alone(order, note))


def on_ray(order: Order, note: Note) -> dict[str, Json]:
    """Ray Train's TensorflowTrainer; this process is its driver."""
    return _with_log(order, lambda: _train_on_ray(order, note))


def _with_log(order: Order, train: Callable[[], dict[str, Json]]) -> dict[str, Json]:
    """Whatever goes wrong is one error that says where all of it is."""
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


def _train_alone(order: Order, note: Note) -> dict[str, Json]:
    from paceline.benchmark import keras_door

    settings = KerasSettings(**order["settings"])
    pictures = _read(settings)
    epochs: list[Json] = []

    def on_epoch(seen: dict[str, Json]) -> None:
        epochs.append(seen)
        note(line_of(seen, settings.epochs))

    keras_door.prepare(settings)
    scale = keras_door.Normalisation(means=pictures.means, deviations=pictures.deviations)
    end = keras_door.train(settings, part_of_baseline(pictures, settings), scale, on_epoch)
    return {
        "images": asdict(pictures.counts),
        "epochs": epochs,
        "end": {**keras_door.versions(), **end},
        "cluster": None,
    }


def _train_on_ray(order: Order, note: Note) -> dict[str, Json]:
    environ.prepare_ray()  # before Ray is imported
    from paceline.benchmark.keras_loop import END, train_loop
    from paceline.launchers import ray_tensorflow_door as ray_train

    settings = KerasSettings(**order["settings"])
    pictures = _read(settings)
    needed = settings.num_workers * settings.threads
    # A Ray of our own pretends to have what is needed: workers share processors.
    ray_train.connect(order["address"], num_cpus=max(needed, len(os.sched_getaffinity(0))))
    try:
        cluster = ray_train.cluster()
        rounds = ray_train.fit(
            train_loop,
            {"order": json.dumps({"settings": settings.to_json(), "normalisation": _scale(pictures)})},
            [part_of_worker(pictures, settings, rank) for rank in range(settings.num_workers)],
            cpus_per_worker=settings.threads,
            folder=Path(order["folder"]),
        )
        epochs: list[Json] = []
        end: dict[str, Json] = {}
        for reports in rounds:
            if reports[0]["ev"] == END:
                end = end_of(reports, order["log"])
            else:
                # Keras has taken the mean over all workers, so all report the same.
                epochs.append(reports[0])
                note(line_of(reports[0], settings.epochs))
    except ray_train.FailedError as error:
        raise failure_of(error.cause, order["log"]) from error
    finally:
        ray_train.close()
    return {"images": asdict(pictures.counts), "epochs": epochs, "end": end, "cluster": cluster}


def _read(settings: KerasSettings) -> Pictures:
    if settings.data == SYNTHETIC:
        read = synthetic_images(settings.seed, count=settings.subset, test_count=settings.test_subset)
    else:
        place = find(settings.data)
        read = read_images(place, subset=settings.subset, test_subset=settings.test_subset)
    return pictures_of(read, settings)


def _scale(pictures: Pictures) -> dict[str, Json]:
    return {"means": [*pictures.means], "deviations": [*pictures.deviations]}


def end_of(reports: list[dict[str, Json]], log: str) -> dict[str, Json]:
    """Rank 0's, after a look at the others: all must have ended with the same weights."""
    first = min(reports, key=lambda said: int(str(said["rank"])))
    if len({said["weights_sha256"] for said in reports}) != 1 or first["replicas"] != len(reports):
        what = "the workers did not end with the same weights, so they did not train one model"
        raise TrainingError(what, f"see {log}")
    busy = [float(str(said["processor_seconds"])) for said in reports]
    return {**first, "processor_seconds": sum(busy)}
