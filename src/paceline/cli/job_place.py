"""Which flags say where something is? A kubeconfig, a context of it, a namespace."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.cli.session import Session

kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where clusters are named. [default: KUBECONFIG, ~/.kube/config, or the cluster we run in]",
)
context_option = click.option(
    "--context", metavar="NAME", help="One of `paceline cluster list`. [default: the current one]"
)
_OPTIONS = (
    kubeconfig_option,
    context_option,
    click.option("--namespace", "-n", metavar="NAME", help="Where it is. [default: the context's]"),
)


def place_options(body: Callable[..., object]) -> Callable[..., object]:
    """Adds the flags; `body` gets what they say as `place`. Stands below `common_options`."""

    @functools.wraps(body)
    def with_place(session: "Session", **params: Any) -> object:  # Any: what click parsed, by flag
        from paceline.app.cluster_reach import Place

        config = session.placed(params.pop("kubeconfig"))
        place = Place(kubeconfig=config, context=params.pop("context"), namespace=params.pop("namespace"))
        return body(session, place=place, **params)

    for option in reversed(_OPTIONS):
        option(with_place)
    return with_place
