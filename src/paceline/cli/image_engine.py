"""Which flags do all commands of `paceline image` have that use a container engine?"""

from collections.abc import Callable
from pathlib import Path

import click

from paceline.errors import ImageWishError, Problem


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


def refuse_secrets(given: tuple[str, ...], flag: str, hint: str) -> None:
    """Every user of the machine can read a command line: NAME=VALUE may be no secret."""
    from paceline.redaction import redact

    for text in given:
        if redact(text) != text:
            raise ImageWishError([Problem(f"{flag} {text.partition('=')[0]} holds a secret", hint, flag)])
