"""`paceline coordinator`: the replicated control plane, its nodes and their state."""

from pathlib import Path

import click

from paceline.cli.options import common_options
from paceline.cli.output import say
from paceline.cli.session import Session
from paceline.errors import ConfigError, Problem


@click.group("coordinator")
def coordinator() -> None:
    """Run and look after the replicated coordinator."""


@coordinator.command("start")
@click.option("--id", "node", type=click.IntRange(min=1), required=True, help="This node's number, from 1.")
@click.option("--peers", required=True, metavar="ID=HOST:PORT,…", help="All nodes of the cluster.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True, help="Where this node keeps its log."
)
@click.option("--listen", metavar="HOST:PORT", help="Where to listen. [default: its address in --peers]")
@click.option("--token-file", type=click.Path(path_type=Path), help="The tokens of all nodes.")
@click.option("--tls-dir", type=click.Path(path_type=Path), help="Certificates made by init-pki.")
@click.option("--cluster", default="paceline", show_default=True, help="The cluster's name.")
@click.option("--join", "is_joining", is_flag=True, help="The cluster exists; `add` will take this node in.")
@common_options
def start(
    session: Session,
    node: int,
    peers: str,
    data_dir: Path,
    listen: str | None,
    token_file: Path | None,
    tls_dir: Path | None,
    cluster: str,
    is_joining: bool,
) -> None:
    """Run one node until Ctrl-C or SIGTERM."""
    from paceline.app.coordinator import serve
    from paceline.coordinator.raft.types import NodeId
    from paceline.coordinator.shell.security import node_security
    from paceline.coordinator.shell.server import Settings

    known = _peers(peers)
    address = listen or known.get(node)
    if address is None:
        what = f"node {node} is not in --peers {peers}"
        raise ConfigError([Problem(what, f"add {node}=HOST:PORT to --peers, or say --listen", "--peers")])
    proof = node_security(address, node, data_dir, token_file=token_file, tls_dir=tls_dir)
    settings = Settings(
        node=NodeId(node),
        listen=address,
        peers={NodeId(other): found for other, found in known.items()},
        data_dir=data_dir,
        proof=proof,
        cluster=cluster,
        is_joining=is_joining,
    )
    serve(settings, lambda line: say(session, line))


def _peers(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for part in text.split(","):
        number, _, address = part.strip().partition("=")
        if not number.isdecimal() or int(number) < 1 or ":" not in address or int(number) in found:
            what = f"peers is {text!r}, but {part!r} is no ID=HOST:PORT with a number of its own"
            hint = "write for example --peers 1=127.0.0.1:7401,2=127.0.0.1:7402,3=127.0.0.1:7403"
            raise ConfigError([Problem(what, hint, "--peers")])
        found[int(number)] = address
    return found
