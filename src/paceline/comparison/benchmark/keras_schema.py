"""Settings and measurements of `paceline benchmark keras`: one model with and without Ray Train.

Both sides have the same global batch, the same images in every step, and the same number of threads in each
process. What cannot work is refused here, before anything starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from paceline.comparison.benchmark.schema import Cluster, HistoryPoint, Measured
from paceline.core.errors import ConfigError, NotReadyError, Problem
from paceline.core.humanize import pluralize, short_bytes
from paceline.plan.codec import Json

VALIDATION_SHARE = 10  # one training image in this many is held out for the callbacks


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
    model: str = ""  # module:function of the user; empty: the built-in network
    dataset: str = ""  # module:function of the user; empty: `data`
    max_failures: int = 0  # restarts of all workers from the newest checkpoint; 0: no checkpoints
    storage: str = ""  # folder or URI that all nodes share, for checkpoints; empty: in the run's folder
    use_gpu: bool = False  # one GPU in the baseline, and in each worker
    code: str = ""  # folder in which the modules of the user are looked for

    @property
    def batch_of_worker(self) -> int:
        return self.batch_size // self.num_workers

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    def compared(self) -> dict[str, Json]:
        """Settings that must be equal on both sides; recovery is of the distributed side alone."""
        return {
            name: value for name, value in asdict(self).items() if name not in ("max_failures", "storage")
        }


def check_settings(settings: KerasSettings) -> None:
    """ConfigError with all settings that cannot work with any data."""
    problems = []
    workers = settings.num_workers
    if settings.batch_size % workers:
        fitting = -(-settings.batch_size // workers) * workers
        problems.append(
            Problem(
                f"batch-size is {settings.batch_size}, which is not divisible by {workers} workers",
                f"write --batch-size {fitting} (the global batch of all workers)",
                "--batch-size",
            )
        )
    if not 0 <= settings.dropout < 0.5:
        message = f"dropout is {settings.dropout:g}, but it must be 0 or more, and below 0.5"
        problems.append(Problem(message, "write for example --dropout 0.25", "--dropout"))
    if settings.storage and not settings.max_failures:
        message = f"storage is {settings.storage}, but without restarts there are no checkpoints"
        problems.append(Problem(message, "write for example --max-failures 3", "--storage"))
    if settings.data and settings.dataset:
        message = f"data is {settings.data}, but dataset {settings.dataset} is named too"
        problems.append(Problem(message, "leave out --data or --dataset", "--data"))
    if problems:
        raise ConfigError(problems)


def check_gpus(gpus: float, settings: KerasSettings, address: str) -> None:
    """NotReadyError unless each worker gets a GPU, if it is to have one; Ray Train would wait for them."""
    if not settings.use_gpu or gpus >= settings.num_workers:
        return
    where = "the Ray that is started here" if address == "local" else f"the Ray at {address}"
    has = (
        "no GPU"
        if gpus == 0
        else f"{pluralize(int(gpus), 'GPU')}, but {settings.num_workers} workers need one each"
    )
    hint = "leave out --use-gpu, use fewer --num-workers, or connect to a cluster with GPUs: --address"
    raise NotReadyError(f"{where} has {has}", hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many images there are of each kind; each worker has the same number of each."""

    training: int
    validation: int
    test: int


def counts_of(read: int, test: int, settings: KerasSettings) -> Counts:
    """Counts that give every worker equally many; ConfigError if that is less than one step."""
    workers = settings.num_workers
    validation = max(workers, read // VALIDATION_SHARE // workers * workers)
    training = (read - validation) // workers * workers
    if training < settings.batch_size or test < workers:
        message = f"{read} training and {test} test images are too few for {workers} workers"
        message += f" and steps of {settings.batch_size}"
        need = settings.batch_size * VALIDATION_SHARE // (VALIDATION_SHARE - 1) + 2 * workers
        hint = f"use --subset {need} or more, or a smaller --batch-size"
        raise ConfigError([Problem(message, hint, "--subset")])
    return Counts(training=training, validation=validation, test=test // workers * workers)


# Steady is what comes after the first epoch, in which TensorFlow builds its graphs; validation in every epoch
# belongs to it, on both sides alike.

Message = Mapping[str, Json]
_MEASURED_OF = "test_"  # prefix of what the finished model reached
_TIMES = ("began_unix_s", "seconds", "training_seconds")  # of an epoch; its other numbers are metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """Report of one side."""

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
    """Progress line of an epoch."""
    loss = number(epoch, "loss")
    validation = f"validation loss {number(epoch, 'val_loss'):.3f}"
    if "val_accuracy" in epoch:
        validation = f"validation accuracy {100 * number(epoch, 'val_accuracy'):.1f} %"
    line = f"epoch {epoch['epoch']} of {epochs}: loss {loss:.3f}, {validation}"
    return f"     {line}, {number(epoch, 'seconds'):.1f} s"


def format_restart(failure: Message, *, after: int) -> str:
    """A failure that the run recovers from; `after` is the last epoch that was reported."""
    place = f"resuming after epoch {after}" if after else "starting again"
    return f"     failure of worker {failure['ranks']}: {place}"


def format_cluster(cluster: Message) -> str:
    """Resources of the cluster, before training starts."""
    nodes = int(number(cluster, "nodes"))
    parts = [
        pluralize(nodes, "node"),
        f"{number(cluster, 'cpus'):g} CPUs",
        f"{number(cluster, 'gpus'):g} GPUs",
        f"{short_bytes(number(cluster, 'memory_bytes'))} of memory",
    ]
    return f"     cluster: {', '.join(parts)}, Ray {cluster['ray']}"


def measured_of(
    report: ProcessReport, settings: KerasSettings, *, called_unix_s: float, total_s: float
) -> Measured:
    assert report.epochs, "a side that ended has trained at least one epoch"
    workers = 1 if report.cluster is None else settings.num_workers
    per_epoch = int(number(report.images, "training")) // settings.batch_size * settings.batch_size
    steps = per_epoch // settings.batch_size * len(report.epochs)
    return Measured(
        name="",  # names and titles are the caller's
        title="",
        framework="keras",
        workers=workers,
        global_batch=settings.batch_size,
        worker_batch=settings.batch_size // workers,
        steps=steps,
        samples=steps * settings.batch_size,
        epochs=float(len(report.epochs)),
        total_s=total_s,
        first_step_s=max(0.0, number(report.epochs[0], "began_unix_s") - called_unix_s),
        steady_samples_per_s=steady_rate_of(report.epochs, per_epoch),
        warm_up="the first epoch",
        metrics={name: number(report.end, name) for name in report.end if name.startswith(_MEASURED_OF)},
        history=_history(report.epochs),
        cluster=_cluster(report.cluster),
        facts=_facts(report, settings, workers),
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
            metrics=_metrics(epoch),
        )
        for epoch in epochs
    )


def _metrics(epoch: Message) -> dict[str, float | None]:
    names = [name for name in epoch if name not in (*_TIMES, "ev", "epoch")]
    return {name: number(epoch, name) for name in names}


def _cluster(row: Message | None) -> Cluster | None:
    if row is None:
        return None
    return Cluster(
        nodes=int(number(row, "nodes")),
        cpus=number(row, "cpus"),
        gpus=number(row, "gpus"),
        memory_bytes=int(number(row, "memory_bytes")),
    )


def _facts(report: ProcessReport, settings: KerasSettings, workers: int) -> dict[str, str]:
    end = report.end
    images = report.images
    busy = number(end, "processor_seconds") / max(number(end, "fit_seconds"), 1e-9)
    norm = "over the global batch" if settings.has_shared_norm else "over each worker's batch"
    facts = {
        "device": "GPU" if settings.use_gpu else "CPU",
        "images": ", ".join(f"{name} {images[name]}" for name in ("training", "validation", "test")),
        "parameters": f"{number(end, 'parameters'):,.0f}",
        "threads": f"{settings.threads}" + (f" in each of {workers} processes" if workers > 1 else ""),
        "processors kept busy by fit": f"{busy:.2f}",
        "seconds in fit": f"{number(end, 'fit_seconds'):.2f}",
        "TensorFlow": str(end["tensorflow"]),
        "tf_keras": str(end["tf_keras"]),
    }
    if report.cluster is not None:
        facts |= {"Ray": str(report.cluster["ray"])}
        if not settings.model:
            facts |= {"batch normalisation": norm}
        facts |= {"weights": "equal on all workers"}
        if "restarts" in end:
            facts |= {"restarts from a checkpoint": str(end["restarts"])}
    return facts


def number(message: Message, name: str) -> float:
    value = message[name]
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)


def _object(value: Json) -> Message:
    assert isinstance(value, dict), "sides answer with objects"
    return value
