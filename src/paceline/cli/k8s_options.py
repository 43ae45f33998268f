"""Flags that select a Kubernetes cluster: kubeconfig, context, namespace; and flags of transfers."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.training.session import Session


kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Kubeconfig file. [default: KUBECONFIG, ~/.kube/config, or the pod's service account]",
)
context_option = click.option(
    "--context",
    metavar="NAME",
    help="Kubeconfig context, see `paceline cluster list`. [default: the current one]",
)
_TARGET_OPTIONS = (
    kubeconfig_option,
    context_option,
    click.option("--namespace", "-n", metavar="NAME", help="Namespace. [default: the context's]"),
)


def k8s_target_options(body: Callable[..., object]) -> Callable[..., object]:
    """Adds the flags; `body` gets what they say as `place`. Stands below `common_options`."""

    @functools.wraps(body)
    def with_place(session: "Session", **params: Any) -> object:  # Any: what click parsed, by flag
        from paceline.k8s.client.connection import ClusterTarget

        config = session.resolve_path(params.pop("kubeconfig"))
        place = ClusterTarget(
            kubeconfig=config, context=params.pop("context"), namespace=params.pop("namespace")
        )
        return body(session, place=place, **params)

    for option in reversed(_TARGET_OPTIONS):
        option(with_place)
    return with_place


_TRANSFER_OPTIONS = (
    click.option(
        "--image",
        metavar="IMAGE",
        help="Image of the transfer pod, with sh, tar and sha256sum. [default: busybox:1.37]",
    ),
    click.option("--force", is_flag=True, help="Allow more than 2 GiB through the API server."),
)


def transfer_options(body: Callable[..., object]) -> Callable[..., object]:
    for option in reversed(_TRANSFER_OPTIONS):
        option(body)
    return body
