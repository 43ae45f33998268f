"""What do the messages of one side say in the benchmark's own numbers? Messages in, `Measured` out. Pure.

Steady is what comes after the first epoch, in which TensorFlow builds its graphs; validation in every epoch
belongs to it, on both sides alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.benchmark.keras_settings import KerasSettings
from paceline.benchmark.measured import Cluster, Measured, Seen
from paceline.plan.codec import Json

Message = Mapping[str, Json]
_SHOWN = ("loss", "accuracy", "val_loss", "val_accuracy", "learning_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a side has answered."""

    images: Message
    epochs: tuple[Message, ...]
    end: Message
    cluster: Message | None  # None: the baseline's

    @classmethod
    def of(cls, answer: Message) -> "Told":
        epochs, cluster = answer["epochs"], answer["cluster"]
        assert isinstance(epochs, list), "a list of epochs"
        return cls(
            images=_object(answer["images"]),
            epochs=tuple(_object(epoch) for epoch in epochs),
            end=_object(answer["end"]),
            cluster=None if cluster is None else _object(cluster),
        )


def line_of(epoch: Message, epochs: int) -> str:
    """For a person who waits."""
    loss, accuracy = number(epoch, "loss"), number(epoch, "val_accuracy")
    said = f"epoch {epoch['epoch']} of {epochs}: loss {loss:.3f}, validation accuracy {100 * accuracy:.1f} %"
    return f"     {said}, {number(epoch, 'seconds'):.1f} s"


def measured_of(told: Told, settings: KerasSettings, *, called_unix_s: float, total_s: float) -> Measured:
    assert told.epochs, "a side that ended has trained at least one epoch"
    workers = 1 if told.cluster is None else settings.num_workers
    per_epoch = int(number(told.images, "training")) // settings.batch_size * settings.batch_size
    steps = per_epoch // settings.batch_size * len(told.epochs)
    return Measured(
        name="",  # names and titles are the caller's
        title="",
        framework="keras",
        workers=workers,
        global_batch=settings.batch_size,
        worker_batch=settings.batch_size // workers,
        steps=steps,
        samples=steps * settings.batch_size,
        epochs=float(len(told.epochs)),
        total_s=total_s,
        first_step_s=max(0.0, number(told.epochs[0], "began_unix_s") - called_unix_s),
        steady_samples_per_s=steady_rate_of(told.epochs, per_epoch),
        warm_up="the first epoch",
        metrics={name: number(told.end, name) for name in ("test_accuracy", "test_loss")},
        history=_history(told.epochs),
        cluster=_cluster(told.cluster),
        facts=_facts(told, settings, workers),
    )


def steady_rate_of(epochs: Sequence[Message], images: int) -> float | None:
    """Images a second of all workers together; None: there was one epoch only."""
    seconds = sum(number(epoch, "seconds") for epoch in epochs[1:])
    return images * (len(epochs) - 1) / seconds if seconds > 0 else None


def _history(epochs: Sequence[Message]) -> tuple[Seen, ...]:
    began_s = number(epochs[0], "began_unix_s")
    return tuple(
        Seen(
            epoch=number(epoch, "epoch"),
            seconds=number(epoch, "began_unix_s") - began_s + number(epoch, "seconds"),
            metrics={name: number(epoch, name) for name in _SHOWN},
        )
        for epoch in epochs
    )


def _cluster(said: Message | None) -> Cluster | None:
    if said is None:
        return None
    return Cluster(
        nodes=int(number(said, "nodes")),
        cpus=number(said, "cpus"),
        gpus=number(said, "gpus"),
        memory_bytes=int(number(said, "memory_bytes")),
    )


def _facts(told: Told, settings: KerasSettings, workers: int) -> dict[str, str]:
    end, images = told.end, told.images
    busy = number(end, "processor_seconds") / max(number(end, "fit_seconds"), 1e-9)
    norm = "over the global batch" if settings.has_shared_norm else "over each worker's batch"
    found = {
        "images": ", ".join(f"{name} {images[name]}" for name in ("training", "validation", "test")),
        "parameters": f"{number(end, 'parameters'):,.0f}",
        "threads": f"{settings.threads}" + (f" in each of {workers} processes" if workers > 1 else ""),
        "processors kept busy by fit": f"{busy:.2f}",
        "seconds in fit": f"{number(end, 'fit_seconds'):.2f}",
        "TensorFlow": str(end["tensorflow"]),
        "tf_keras": str(end["tf_keras"]),
    }
    if told.cluster is not None:
        found |= {
            "Ray": str(told.cluster["ray"]),
            "batch normalisation": norm,
            "weights": "equal on all workers",
        }
    return found


def number(message: Message, name: str) -> float:
    value = message[name]
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)


def _object(value: Json) -> Message:
    assert isinstance(value, dict), "sides answer with objects"
    return value
