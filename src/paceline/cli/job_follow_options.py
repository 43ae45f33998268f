"""Which flags have the commands that follow a job? How long, and where its lines are kept."""

from collections.abc import Callable
from pathlib import Path

import click


def follow_options(for_s: float) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """`body` gets `for_s` and `output`."""
    duration = click.option(
        "--for",
        "for_s",
        type=click.FloatRange(0),
        default=for_s,
        show_default=True,
        metavar="SECONDS",
        help="Then the shell returns, and a watcher goes on. 0: follow to the end.",
    )
    output = click.option(
        "--output",
        "-o",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Keep the lines in a file too, while they are shown.",
    )
    return lambda body: duration(output(body))
