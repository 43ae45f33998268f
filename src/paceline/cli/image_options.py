"""Options of the image commands: what an image is built from and where it will run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.core.errors import ImageOptionError, Problem

if TYPE_CHECKING:
    from paceline.images.lint.project import Target


_PATH = click.Path(path_type=Path)
_OPTIONS = (
    click.argument("folder", metavar="[DIR]", default=".", type=_PATH),
    click.option(
        "--dockerfile",
        type=_PATH,
        metavar="FILE",
        help="Dockerfile in the build context DIR. [default: Dockerfile]",
    ),
    click.option(
        "--requirements",
        type=_PATH,
        multiple=True,
        metavar="FILE",
        help="Additional requirements file. [default: those that the Dockerfile installs]",
    ),
    click.option(
        "--target",
        type=click.Choice(["cpu", "gpu"]),
        help="Target hardware. [default: gpu for NVIDIA images, else not checked]",
    ),
    click.option(
        "--gpu", metavar="NAME", help="GPU model, such as h100 or l4, or its architecture, such as sm_90."
    ),
    click.option(
        "--driver",
        type=click.IntRange(300, 999),
        metavar="N",
        help="Major version of the NVIDIA driver on the hosts, such as 535.",
    ),
    click.option(
        "--platform",
        type=click.Choice(["linux/amd64", "linux/arm64"]),
        default="linux/amd64",
        show_default=True,
        help="CPU architecture of the hosts.",
    ),
)


def image_options(body: Callable[..., object]) -> Callable[..., object]:
    for option in reversed(_OPTIONS):
        option(body)
    return body


def target_of(target: str | None, gpu: str | None, driver: int | None, platform: str) -> "Target":
    from datetime import UTC, datetime

    from paceline.core import clock
    from paceline.images.lint.project import Kind, Target

    today = datetime.fromtimestamp(clock.unix_now_s(), UTC).date()
    kind = Kind.UNKNOWN if target is None else Kind(target)
    if gpu is not None or driver is not None:
        if kind is Kind.CPU:
            message = "--gpu and --driver need GPUs, but --target is cpu"
            raise ImageOptionError([Problem(message, "leave out one of them", "--target")])
        kind = Kind.GPU
    return Target(today=today, kind=kind, arch=_arch(gpu), driver=driver, platform=platform)


def _arch(gpu: str | None) -> str | None:
    from paceline.images.lint.bases import catalog

    if gpu is None:
        return None
    name = gpu.lower().replace(" ", "").replace("-", "").removeprefix("nvidia")
    known = catalog().gpus
    if name in known:
        return known[name]
    if name.startswith("sm_") and name.removeprefix("sm_").isdigit():
        return name
    message = f"{gpu} is not a known GPU"
    hint = f"give its architecture, such as sm_90, or one of {', '.join(sorted(known))}"
    raise ImageOptionError([Problem(message, hint, "--gpu")])


def engine_option(body: Callable[..., object]) -> Callable[..., object]:
    return click.option(
        "--engine",
        type=click.Choice(["docker", "podman", "buildah"]),
        help="Container engine. [default: the first one available]",
    )(body)


def report_option(files: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        "--report", type=click.Path(path_type=Path), metavar="FOLDER", help=f"Folder for {files}."
    )


def refuse_secrets(given: tuple[str, ...], flag: str, hint: str) -> None:
    """Refuse secrets in NAME=VALUE: every user of the machine can read a command line."""
    from paceline.core.redaction import redact

    for text in given:
        if redact(text) != text:
            raise ImageOptionError([Problem(f"{flag} {text.partition('=')[0]} holds a secret", hint, flag)])
