"""Which flags have commands that carry files, beside those that name a cluster?"""

from collections.abc import Callable

import click

_OPTIONS = (
    click.option(
        "--image",
        metavar="IMAGE",
        help="Of the pod that carries the files: with sh, tar, sha256sum. [default: busybox:1.37]",
    ),
    click.option("--force", is_flag=True, help="Also more than 2 GiB, all through the API server."),
)


def file_options(body: Callable[..., object]) -> Callable[..., object]:
    for option in reversed(_OPTIONS):
        option(body)
    return body
