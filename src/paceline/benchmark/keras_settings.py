"""What does `paceline benchmark keras` compare? One model on one set of images, with and without Ray Train.

Both sides have the same global batch, the same images in every step, and the same number of threads in each
process. What cannot work is refused here, before anything starts.
"""

from dataclasses import asdict, dataclass

from paceline.errors import ConfigError, Problem
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
    problems, workers = [], settings.num_workers
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
