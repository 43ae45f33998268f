"""Which flags do all commands of `paceline image` have that use a container engine?"""

from collections.abc import Callable
from pathlib import Path

import click


def engine_option(body: Callable[..., object]) -> Callable[..., object]:
    return click.option(
        "--engine",
        type=click.Choice(["docker", "podman", "buildah"]),
        help="The container engine. [default: the first of these that can be used]",
    )(body)


def report_option(files: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        "--report", type=click.Path(path_type=Path), metavar="FOLDER", help=f"Write {files} into it."
    )
