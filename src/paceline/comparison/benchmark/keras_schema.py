"""Settings and measurements of `paceline benchmark keras`: one model with and without Ray Train.

Both sides have the same global batch, the same images in every step, and the same number of threads in each
process. What cannot work is refused here, before anything starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from paceline.comparison.benchmark.schema import Cluster, HistoryPoint, Measured
from paceline.core.errors import ConfigError, Problem
from paceline.plan.codec import Json

VALIDATION_SHARE = 10  # one training image of so many is held out, for the callbacks to look at


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasSettings:
    """`batch_size` is that of all workers together, and of the baseline."""

    num_workers: int = 2
    epochs: int = 3
    batch_size: int = 64
    data: str = (
        ""  # the folder or archive of CIFAR-10, or synthetic; empty: where `paceline data fetch` puts it
    )
    subset: int | None = None
    test_subset: int | None = None
    seed: int = 0
    threads: int = 1  # of the baseline, and of each worker
    width: int = 64  # filters of the first block; the others have two and four times as many
    dropout: float = 0.25
    learning_rate: float = 1e-3
    has_shared_norm: bool = True  # batch normalisation over the global batch; else over each worker's own

    @property
    def batch_of_worker(self) -> int:
        return self.batch_size // self.num_workers

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


def check_settings(settings: KerasSettings) -> None:
    """ConfigError with everything that cannot work, whatever the data is."""
    problems = []
    workers = settings.num_workers
    if settings.batch_size % workers:
        fitting = -(-settings.batch_size // workers) * workers
        problems.append(
            Problem(
                f"batch-size is {settings.batch_size}, which {workers} workers cannot share equally",
                f"write --batch-size {fitting}: it is the batch of all workers together",
                "--batch-size",
            )
        )
    if not 0 <= settings.dropout < 0.5:
        what = f"dropout is {settings.dropout:g}, but it must be 0 or more, and below 0.5"
        problems.append(Problem(what, "write for example --dropout 0.25", "--dropout"))
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many images there are of each kind; each worker has the same number of each."""

    training: int
    validation: int
    test: int


def counts_of(read: int, test: int, settings: KerasSettings) -> Counts:
    """What is left when every worker is to have equally many; ConfigError if that is less than one step."""
    workers = settings.num_workers
    validation = max(workers, read // VALIDATION_SHARE // workers * workers)
    training = (read - validation) // workers * workers
    if training < settings.batch_size or test < workers:
        what = f"{read} training and {test} test images are too few for {workers} workers"
        what += f" and steps of {settings.batch_size}"
        need = settings.batch_size * VALIDATION_SHARE // (VALIDATION_SHARE - 1) + 2 * workers
        hint = f"use --subset {need} or more, or a smaller --batch-size"
        raise ConfigError([Problem(what, hint, "--subset")])
    return Counts(training=training, validation=validation, test=test // workers * workers)


# Steady is what comes after the first epoch, in which TensorFlow builds its graphs; validation in every epoch
# belongs to it, on both sides alike.

Message = Mapping[str, Json]
_SHOWN = ("loss", "accuracy", "val_loss", "val_accuracy", "learning_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """What a side has answered."""

    images: Message
    epochs: tuple[Message, ...]
    end: Message
    cluster: Message | None  # None: the baseline's

    @classmethod
    def of(cls, answer: Message) -> "ProcessReport":
        epochs = answer["epochs"]
        cluster = answer["cluster"]
        assert isinstance(epochs, list), "a list of epochs"
        return cls(
            images=_object(answer["images"]),
            epochs=tuple(_object(epoch) for epoch in epochs),
            end=_object(answer["end"]),
            cluster=None if cluster is None else _object(cluster),
        )


def format_epoch(epoch: Message, epochs: int) -> str:
    """For a person who waits."""
    loss = number(epoch, "loss")
    accuracy = number(epoch, "val_accuracy")
    said = f"epoch {epoch['epoch']} of {epochs}: loss {loss:.3f}, validation accuracy {100 * accuracy:.1f} %"
    return f"     {said}, {number(epoch, 'seconds'):.1f} s"


def measured_of(
    told: ProcessReport, settings: KerasSettings, *, called_unix_s: float, total_s: float
) -> Measured:
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


def _history(epochs: Sequence[Message]) -> tuple[HistoryPoint, ...]:
    began_s = number(epochs[0], "began_unix_s")
    return tuple(
        HistoryPoint(
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


def _facts(told: ProcessReport, settings: KerasSettings, workers: int) -> dict[str, str]:
    end = told.end
    images = told.images
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
