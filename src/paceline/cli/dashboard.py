"""`paceline dashboard`: runs in a browser, live or recorded."""

import html
import os
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import read_from_anywhere
from paceline.cli.options import RunPath, common_options, run_names
from paceline.cli.output import emit, print_message
from paceline.core.errors import ConfigError, MissingPackageError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from paceline.plan.codec import Json


@click.command("dashboard")
@click.argument(
    "place",
    shell_complete=run_names,
    metavar="[RUN|FOLDER]",
    type=RunPath(),
    default=Path("runs"),
)
@click.option("--replay", is_flag=True, help="Replay a recorded run from its beginning.")
@click.option("--readonly", is_flag=True, help="Disable all actions on runs.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on (0 = any free port). [default: 8642, else any free port]",
)
@click.option(
    "--name", "names", multiple=True, help="Additional host name that browsers may use. Repeatable."
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="File with the access token; created if missing."
)
@click.option(
    "--allow-faults/--no-faults",
    default=None,
    help="Enable or disable fault injection from the page. [default: enabled for runs on this machine]",
)
@click.option(
    "--rules", type=click.Path(path_type=Path), help="Alert rules file. [default: the built-in rules]"
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.option("--beside", is_flag=True, hidden=True, help="Exit when stdin is closed.")
@common_options
@read_from_anywhere("place", token_flag="--coordinator-token-file")
def dashboard(
    session: Session,
    place: Path,
    replay: bool,
    readonly: bool,
    host: str,
    port: int | None,
    names: tuple[str, ...],
    token_file: Path | None,
    allow_faults: bool | None,
    rules: Path | None,
    opens: bool,
    beside: bool,
) -> None:
    """Serve the web dashboard of a run (a run folder or its store), or of a folder of runs.

    With --coordinator RUN is the name of a run there, which is shown from its store.

    Prints a URL with an access token: anyone who has it can view and control the runs. With --token-file
    the URL is printed without the token, so that it does not appear in logs.
    """
    try:
        from paceline.dashboard.server import serve
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"the dashboard needs a package that is not installed: {error.name}",
            "pip install 'paceline[dashboard]'",
        ) from error
    from paceline.dashboard.auth import load_or_create_token
    from paceline.dashboard.launch import PORT, Settings

    is_loopback = host in ("127.0.0.1", "localhost", "::1")
    if not is_loopback and allow_faults is None:
        allow_faults = False  # beyond this machine only who says so may break things
    settings = Settings(
        place=session.folder / place,
        token=load_or_create_token(token_file),
        host=host,
        port=_port(host, PORT) if port is None else port,
        names=names,
        is_replay=replay,
        is_readonly=readonly,
        allows_faults=allow_faults,
        rules=rules,
        stops_with_stdin=beside,
    )
    if replay and not (settings.place / "events.jsonl").exists():
        raise ConfigError([Problem(f"{place} is not a run folder", "name the run folder to replay", "RUN")])

    def ready(address: str) -> None:
        # A token from a file is not printed, so that it does not appear in a log.
        url = address if token_file else f"{address}?token={settings.token}"
        data: dict[str, Json] = {"url": url, "place": str(place), "is_replay": replay}
        lines = [url]
        if token_file is not None:
            data["token_file"] = str(token_file)
            lines.append(f"add ?token=… with the token in {token_file}")
        emit(session, "dashboard", data, lines)
        _flush()
        print_message(session, _how_on(address))
        show(f"{address}?token={settings.token}")

    with _url_opener(session, opens=opens) as show:
        serve(settings, ready)


def _url_opener(session: Session, *, opens: bool) -> "AbstractContextManager[Callable[[str], None]]":
    if not opens:
        return nullcontext(lambda _: None)

    return browser_opener(lambda text: print_message(session, text))


def _how_on(address: str) -> str:
    import platform
    from urllib.parse import urlsplit

    port = urlsplit(address).port
    return f"stop with Ctrl-C; from another machine:  ssh -L {port}:localhost:{port} {platform.node()}"


def _flush() -> None:
    import sys

    sys.stdout.flush()  # the parent process waits for the line


def _port(host: str, usual: int) -> int:
    """The default port, unless it is taken."""
    import socket

    try:
        with socket.create_server((host, usual)):
            return usual
    except OSError:
        return 0


# All users of a machine can read command lines, so the browser is not started with the address itself.

REDIRECT_PAGE = """<!doctype html>
<title>Paceline</title>
<meta http-equiv="refresh" content="0; url={url}">
<a href="{url}">here</a>
"""


@contextmanager
def browser_opener(say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Opens an address; temporary files are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:  # readable only by this user
        yield lambda url: _open(url, Path(folder) / "dashboard.html", say)


def _open(url: str, page: Path, say: Callable[[str], None]) -> None:
    with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(REDIRECT_PAGE.format(url=html.escape(url)))

    def look() -> None:
        if not webbrowser.open(page.as_uri()):
            say("no browser was found on this machine")

    # Some browsers stay in the foreground; the server must not wait for one.
    threading.Thread(target=look, daemon=True).start()
