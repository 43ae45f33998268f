"""`paceline benchmark keras`: Keras' own `fit` against Ray Train's TensorflowTrainer, on CIFAR-10."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.benchmark import number_setting, out_option, repeats_option
from paceline.cli.options import common_options
from paceline.cli.output import print_message
from paceline.core import environ
from paceline.core.errors import ConfigError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.comparison.benchmark.keras_schema import KerasSettings

_COUNT = click.IntRange(min=1)


@click.command("keras")
@click.option("--num-workers", type=_COUNT, help="Number of Ray Train workers. [default: NUM_WORKERS, or 2]")
@click.option("--epochs", type=_COUNT, help="Maximum number of epochs. [default: EPOCHS, or 3]")
@click.option(
    "--batch-size",
    type=_COUNT,
    help="Global batch size in images. [default: BATCH_SIZE, or 64]",
)
@click.option(
    "--data",
    metavar="FOLDER|synthetic",
    default="",
    help="Folder with CIFAR-10, or generated images. [default: the folder of `paceline data fetch cifar10`]",
)
@click.option(
    "--dataset",
    metavar="MODULE:FUNCTION",
    default="",
    help="Your data: a function that returns ((x_train, y_train), (x_test, y_test)), instead of --data.",
)
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    default="",
    help="Your model: a function that returns a compiled tf_keras model. [default: the CNN]",
)
@click.option("--subset", type=_COUNT, help="Number of training images. [default: all]")
@click.option("--test-subset", type=_COUNT, help="Number of test images. [default: all]")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=0,
    show_default=True,
    help="Seed of the weights and the sample order.",
)
@click.option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    default=1e-3,
    show_default=True,
    help="Learning rate of Adam.",
)
@click.option(
    "--width", type=_COUNT, default=64, show_default=True, help="Number of filters in the first block."
)
@click.option(
    "--dropout",
    type=float,
    default=0.25,
    show_default=True,
    help="Dropout rate below 0.5; doubled in the last layer.",
)
@click.option(
    "--batch-norm",
    type=click.Choice(["shared", "own"]),
    default="shared",
    show_default=True,
    help="Batch normalization over the global batch (shared) or each worker's batch (own).",
)
@click.option(
    "--threads-per-worker",
    type=_COUNT,
    default=1,
    show_default=True,
    help="Threads per worker, and of the baseline.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Restarts of Ray Train's workers from the newest checkpoint; 0 writes no checkpoints.",
)
@click.option(
    "--storage",
    metavar="FOLDER|URI",
    default="",
    help="Storage of the checkpoints that all nodes share. [default: the folder of the run]",
)
@click.option(
    "--use-gpu",
    is_flag=True,
    help="Train on a GPU: one in the baseline, and one in each worker. [default: CPUs]",
)
@click.option(
    "--address",
    metavar="WHERE",
    help="Ray address: local, auto or HOST:PORT. [default: RAY_ADDRESS, or local]",
)
@click.option(
    "--only",
    type=click.Choice(["baseline", "distributed"]),
    help="Run one side, and compare it with an earlier run of the other in --out. [default: both]",
)
@out_option
@repeats_option
@common_options
def keras(
    session: Session,
    out: Path,
    repeats: int,
    address: str | None,
    only: str | None,
    **params: Any,  # Any: what click parsed, by flag
) -> None:
    """Train a CNN on CIFAR-10 with `model.fit` and with Ray Train on several workers, and compare.

    Both use the same model, initial weights, images, global batch and callbacks.
    """
    from paceline.cli.benchmark import announce_turn, show_benchmark, show_side
    from paceline.comparison.benchmark.keras_runner import benchmark_keras
    from paceline.comparison.benchmark.keras_sides import Side

    folder = session.folder / out
    result = benchmark_keras(
        _settings(session, params),
        folder,
        address=address or environ.ray_address() or "local",
        repeats=repeats,
        only=None if only is None else Side(only),
        notify=lambda coming: announce_turn(session, coming),
        note=lambda text: print_message(session, text),
    )
    show = show_side if len(result.rows) == 1 else show_benchmark
    show(session, "benchmark.keras", result, folder)


_OF_THE_CNN = ("lr", "width", "dropout", "batch_norm")


def _settings(session: Session, params: dict[str, Any]) -> "KerasSettings":  # Any: what click parsed, by flag
    """Parameters with the same name as a field are passed on unchanged."""
    from paceline.comparison.benchmark.keras_schema import KerasSettings

    if params["model"]:
        _check_own_model(click.get_current_context(), params["model"])
    is_own = params["model"] or params["dataset"]
    return KerasSettings(
        num_workers=number_setting("num_workers", params.pop("num_workers"), 2),
        epochs=number_setting("epochs", params.pop("epochs"), 3),
        batch_size=number_setting("batch_size", params.pop("batch_size"), 64),
        threads=params.pop("threads_per_worker"),
        learning_rate=params.pop("lr"),
        has_shared_norm=params.pop("batch_norm") == "shared",
        code=str(session.folder.resolve()) if is_own else "",
        **params,
    )


def _check_own_model(context: click.Context, model: str) -> None:
    """ConfigError if an option of the built-in model is given."""
    default = click.core.ParameterSource.DEFAULT
    given = [name for name in _OF_THE_CNN if context.get_parameter_source(name) is not default]
    flags = [f"--{name.replace('_', '-')}" for name in given]
    hint = "leave it out: the function builds and compiles the whole model"
    problems = [
        Problem(f"{flag} is of the built-in model, but the model is {model}", hint, flag) for flag in flags
    ]
    if problems:
        raise ConfigError(problems)
