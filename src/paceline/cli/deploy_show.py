"""How does `paceline deploy` show what it rendered, or what it did? The same for every service."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.output import emit, say
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.app.deploy import Applied
    from paceline.plan.codec import Json

_PATH = click.Path(path_type=Path)
_OUT = (
    click.option(
        "--out", type=_PATH, metavar="DIR", help="Write a folder for `kubectl apply -k`. [default: print]"
    ),
)
_PLACE = (
    click.option("--kubeconfig", type=_PATH, metavar="FILE", help="Where clusters are named."),
    click.option(
        "--context", metavar="NAME", help="One of `paceline cluster list`. [default: the current one]"
    ),
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


def show_applied(session: Session, done: "Sequence[Applied]") -> None:
    rows: list[Json] = [{"object": one.object, "state": one.state} for one in done]
    emit(session, "deploy.apply", {"objects": rows}, [f"{one.state:<16} {one.object}" for one in done])
