"""What does a worker of Ray Train do in `paceline benchmark keras`? What the baseline does, under a strategy.

Ray Train calls `train_loop` in each worker's process, with TF_CONFIG set. Every epoch is reported by all
workers, and at the end each says what it ended with.
"""

import json

from paceline.benchmark import keras_door
from paceline.benchmark.keras_door import Normalisation
from paceline.benchmark.keras_settings import KerasSettings
from paceline.launchers import ray_tensorflow_door as ray_train
from paceline.plan.codec import Json

EPOCH, END = "epoch", "end"


def train_loop(config: dict[str, object]) -> None:
    order = json.loads(str(config["order"]))
    settings = KerasSettings(**order["settings"])
    rank = ray_train.rank()
    keras_door.prepare(settings)
    strategy = keras_door.multi_worker_strategy()  # first of all that TensorFlow does
    part = ray_train.take(config["parts"], rank)

    def on_epoch(seen: dict[str, Json]) -> None:
        ray_train.report({"ev": EPOCH, **seen})

    done = keras_door.train(
        settings, part, Normalisation(**order["normalisation"]), on_epoch, rank=rank, strategy=strategy
    )
    replicas = int(strategy.num_replicas_in_sync)
    ray_train.report({"ev": END, "rank": rank, "replicas": replicas, **keras_door.versions(), **done})
