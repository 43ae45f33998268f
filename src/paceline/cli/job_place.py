"""Which flags say where something is? A kubeconfig, a context of it, a namespace."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.cli.session import Session

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
)


def place_options(body: Callable[..., object]) -> Callable[..., object]:
    """Adds the flags; `body` gets what they say as `place`. Stands below `common_options`."""

    @functools.wraps(body)
    def with_place(session: "Session", **params: Any) -> object:  # Any: what click parsed, by flag
        from paceline.app.cluster_reach import Place

        said: Path | None = params.pop("kubeconfig")
        config = None if said is None else session.folder / said
        place = Place(kubeconfig=config, context=params.pop("context"), namespace=params.pop("namespace"))
        return body(session, place=place, **params)

    for option in reversed(_OPTIONS):
        option(with_place)
    return with_place
