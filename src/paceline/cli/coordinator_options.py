"""Options of coordinator commands: addresses, credentials and timeouts of the nodes."""

import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from paceline.cli.options import mirrored_run
from paceline.core import environ
from paceline.core.errors import ClusterOptionError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.client.endpoints import Endpoints
    from paceline.coordinator.run_endpoint import Coordinators

Result = TypeVar("Result")
DEFAULT_DIR = Path("runs/coordinator")
PATH = click.Path(path_type=Path)

_TLS = (
    click.option(
        "--tls-dir",
        type=PATH,
        help="Folder with a certificate from init-pki, to use instead of a token. "
        "[default: PACELINE_TLS_DIR]",
    ),
    click.option(
        "--tls-name",
        metavar="NAME",
        help="Client whose certificate to use, if the folder has several. [default: PACELINE_TLS_NAME]",
    ),
)
_OPTIONS = (
    click.option(
        "--at", metavar="HOST:PORT[,…]", help="Address of a node; one is enough to discover the others."
    ),
    click.option(
        "--dir",
        "folder",
        type=PATH,
        help="Folder created by `up`. [default: PACELINE_COORDINATOR, else runs/coordinator]",
    ),
    click.option(
        "--token-file",
        type=PATH,
        help="File with the authentication token. [default: PACELINE_TOKEN, else this user's tokens.json]",
    ),
    *_TLS,
)


def coordinator_options(body: Callable[..., object]) -> Callable[..., object]:
    """Apply below `common_options`; `body` gets the endpoints as its second argument."""

    @functools.wraps(body)
    def with_cluster(session: Session, **params: Any) -> object:  # Any: what click parsed, by flag
        options = {name: params.pop(name) for name in ("at", "folder", "token_file", "tls_dir", "tls_name")}
        return body(session, _find(session, **options), **params)

    for option in reversed(_OPTIONS):
        option(with_cluster)
    return with_cluster


def run_coordinator_options(
    purpose: str, *, token_flag: str = "--token-file"
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Options of the coordinator of a run; the body gets it as `coordinators`, None: no flag names one.

    `token_flag`: its name in a command that has a token file of its own.
    """
    named = click.option("--coordinator", metavar="HOST:PORT[,…]", multiple=True, help=purpose)
    token = click.option(
        token_flag,
        "coordinator_token_file",
        type=PATH,
        help="File with the coordinator's token. [default: this user's tokens.json]",
    )

    def with_options(body: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(body)
        def with_coordinators(session: Session, **params: Any) -> object:  # Any: what click parsed, by flag
            options = {name: params.pop(name) for name in ("coordinator", "tls_dir", "tls_name")}
            token_file = params.pop("coordinator_token_file")
            coordinators = _choose(session, token_file=token_file, **options)
            return body(session, coordinators=coordinators, **params)

        for option in reversed((named, token, *_TLS)):
            option(with_coordinators)
        return with_coordinators

    return with_options


act_from_anywhere = run_coordinator_options(
    "Coordinator nodes that have RUN, which is then its name or id instead of its folder."
)


def only_beside_the_run(body: Callable[..., object]) -> Callable[..., object]:
    """Refuses the options of `act_from_anywhere`: the command signals processes of its own machine."""
    for flag in ("--coordinator", "--token-file", "--tls-dir", "--tls-name"):
        body = click.option(flag, hidden=True, expose_value=False, callback=_refuse_remote)(body)
    return body


def _refuse_remote(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    what = f"{context.command_path} acts on processes of its own machine, not through a coordinator"
    hint = (
        "run it beside the command that trains, with the run folder; from elsewhere there are:  "
        "paceline workers add|remove, checkpoint now, stop"
    )
    raise ClusterOptionError([Problem(what, hint, parameter.opts[0])])


def read_from_anywhere(
    argument: str = "run", *, needs_checkpoints: bool = False, token_flag: str = "--token-file"
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Options of a command that reads a run: with --coordinator the run is named, and read from its store.

    `argument`: the parameter that names the run.
    """
    named = run_coordinator_options(
        "Coordinator nodes that know RUN, which is then its name; it is read from its --run-store.",
        token_flag=token_flag,
    )

    def with_options(body: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(body)
        def reading(session: Session, *, coordinators: "Coordinators | None", **params: Any) -> object:
            if coordinators is not None:
                params[argument] = _named_run(coordinators, params[argument], needs_checkpoints)
            return body(session, **params)

        return named(reading)

    return with_options


def _named_run(coordinators: "Coordinators", run: Path | None, needs_checkpoints: bool) -> Path:
    from paceline.training.command_lease import find_store

    if run is None:
        raise ClusterOptionError(
            [Problem("--coordinator needs the name of a run", "name the run", "--coordinator")]
        )
    return mirrored_run(find_store(coordinators, run.name), needs_checkpoints=needs_checkpoints)


def _choose(
    session: Session,
    coordinator: tuple[str, ...],
    token_file: Path | None,
    tls_dir: Path | None,
    tls_name: str | None,
) -> "Coordinators | None":
    if not coordinator and (token_file or tls_dir or tls_name) is None:
        return None  # the environment is read where a run needs it
    _quiet_grpc()
    from paceline.coordinator.client.endpoints import choose_coordinators

    return choose_coordinators(
        coordinator,
        token_file=session.resolve_path(token_file),
        tls_dir=session.resolve_path(tls_dir),
        tls_name=tls_name,
    )


def _find(
    session: Session,
    at: str | None,
    folder: Path | None,
    token_file: Path | None,
    tls_dir: Path | None,
    tls_name: str | None,
) -> "Endpoints":
    _quiet_grpc()
    from paceline.coordinator.client.endpoints import EndpointOptions, find_endpoints, split_addresses

    addresses = split_addresses(at or "", "--at")
    if at is not None and not addresses:
        raise ClusterOptionError([Problem("--at has no address", "write --at HOST:PORT", "--at")])
    return find_endpoints(
        EndpointOptions(
            usual_folder=session.folder / DEFAULT_DIR,
            at=addresses,
            folder=session.resolve_path(folder),
            token_file=token_file,
            tls_dir=tls_dir,
            tls_name=tls_name,
        )
    )


def _quiet_grpc() -> None:
    """Before grpc is imported: it writes a line for each failed handshake, which our error describes."""
    environ.set_default_variables(GRPC_VERBOSITY="ERROR")


def timeout_option(default_s: float) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        "--timeout-s",
        type=click.FloatRange(min=0, min_open=True, max=3600),
        default=default_s,
        show_default=True,
        help="Timeout for responses in seconds.",
    )


def run_async(coroutine: Coroutine[Any, Any, Result]) -> Result:  # Any: what it awaits is its own affair
    import asyncio  # takes longer than all of `--help`

    return asyncio.run(coroutine)


def parse_node(text: str, where: str) -> tuple[int, str]:
    """`4=127.0.0.1:7404` is node 4 and its address."""
    from paceline.coordinator.client.nodes_file import is_address

    number, _, address = text.strip().partition("=")
    if not number.isdecimal() or int(number) < 1 or not is_address(address):
        what = f"{text!r} is not ID=HOST:PORT"
        raise ClusterOptionError([Problem(what, "write for example 4=127.0.0.1:7404", where)])
    return int(number), address
