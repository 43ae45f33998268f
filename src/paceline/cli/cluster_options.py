"""Which flags name a cluster, for commands that carry files?"""

from collections.abc import Callable
from pathlib import Path

import click

_OPTIONS = (
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Where clusters are named. [default: KUBECONFIG, ~/.kube/config, or the cluster we run in]",
    ),
    click.option(
        "--context", metavar="NAME", help="One of `paceline cluster list`. [default: the current one]"
    ),
    click.option("--namespace", "-n", metavar="NAME", help="Where it is. [default: the context's]"),
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
