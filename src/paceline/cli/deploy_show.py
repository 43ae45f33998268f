"""How does `paceline deploy` show what it rendered, or what it did? The same for every service."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.job_place import context_option, kubeconfig_option
from paceline.cli.output import emit, say
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.app.deploy import Applied
    from paceline.cluster.kubernetes_door import KubernetesApi
    from paceline.plan.codec import Json

_OUT = (
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Write a folder for `kubectl apply -k`. [default: print]",
    ),
)
_PLACE = (
    kubeconfig_option,
    context_option,
    click.option("--dry-run", is_flag=True, help="Let the server try it, and write nothing."),
)
Body = Callable[..., object]


def render_options(of_service: Sequence[Callable[[Body], Body]]) -> Callable[[Body], Body]:
    return _with((*of_service, *_OUT))


def apply_options(of_service: Sequence[Callable[[Body], Body]]) -> Callable[[Body], Body]:
    return _with((*of_service, *_PLACE))


def _with(options: Sequence[Callable[[Body], Body]]) -> Callable[[Body], Body]:
    def decorated(body: Body) -> Body:
        for option in reversed(options):
            body = option(body)
        return body

    return decorated


def show_files(session: Session, files: dict[str, str], first: Sequence[str], out: Path | None) -> None:
    from paceline.app.deploy import write_files

    for command in first:
        say(session, f"first: {command}")
    texts: dict[str, Json] = dict(files)
    if out is None:
        shown = [text for name, text in files.items() if name != "kustomization.yaml"]
        lines = "---\n".join(shown).splitlines()
    else:
        write_files(session.folder / out, files)
        lines = [f"wrote {out}: {', '.join(files)}", f"apply it: kubectl apply -k {out}"]
    emit(session, "deploy.render", {"files": texts, "first": list(first)}, lines)


@contextmanager
def cluster_of(session: Session, said: dict[str, Any]) -> "Iterator[KubernetesApi]":
    """Where it is applied: by what `apply_options` has read, which is taken out of `said`."""
    from paceline.app.cluster_reach import Place, reached

    place = Place(kubeconfig=session.placed(said.pop("kubeconfig")), context=said.pop("context"))
    with reached(place, without="only write the objects: paceline deploy render") as cluster:
        yield cluster.api


def show_applied(session: Session, done: "Sequence[Applied]") -> None:
    rows: list[Json] = [{"object": one.object, "state": one.state} for one in done]
    emit(session, "deploy.apply", {"objects": rows}, [f"{one.state:<16} {one.object}" for one in done])
