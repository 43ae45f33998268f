"""`paceline benchmark`: one process against many, and other people's ways of distributing beside ours."""

import click

from paceline.cli.lazy_group import LazyGroup
from paceline.cli.options import common_options
from paceline.cli.session import Session

# name: (module, attribute that holds the click command, help in one line)
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "keras": (
        "paceline.cli.benchmark_keras",
        "keras",
        "Keras' own fit against Ray Train's TensorflowTrainer, with real TensorFlow.",
    ),
    "torch": (
        "paceline.cli.benchmark_torch",
        "torch",
        "Plain torch, its DDP, Ray Train and modes of ours in one table.",
    ),
}


class _Benchmarks(LazyGroup):
    """A benchmark's module is imported only when it runs."""

    table = _COMMANDS
    path = "benchmark"


@click.group("benchmark", cls=_Benchmarks)
@common_options
def benchmark(session: Session) -> None:
    """Train one model alone and distributed, on the same data with the same global batch, and compare.

    Speedup and efficiency are shown twice: of the total time, and of the steady part of the training.
    The variables EPOCHS, BATCH_SIZE and NUM_WORKERS are defaults behind the flags of the same name.
    """
