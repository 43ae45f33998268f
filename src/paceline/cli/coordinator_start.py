"""`paceline coordinator start` and `up`: one node, or a local cluster of nodes."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import DEFAULT_DIR, PATH, parse_node
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ClusterOptionError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.admin.status import StatusReport
    from paceline.coordinator.server.server import Note, Settings
    from paceline.plan.codec import Json

_TOKENS = (
    "File with the tokens of all nodes. [default: ~/.config/paceline/tokens.json, created at the first start]"
)


@click.command("start")
@click.option("--id", "node", type=click.IntRange(min=1), required=True, help="Number of this node, from 1.")
@click.option("--peers", required=True, metavar="ID=HOST:PORT,…", help="Numbers and addresses of all nodes.")
@click.option("--data-dir", type=PATH, required=True, help="Folder for this node's Raft log.")
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on. [default: its address in --peers]")
@click.option("--token-file", type=PATH, help=_TOKENS)
@click.option(
    "--tls-dir", type=PATH, help="Folder with certificates from init-pki; required beyond loopback."
)
@click.option("--cluster", default="paceline", show_default=True, help="Name of the coordinator.")
@click.option(
    "--join",
    "is_joining",
    is_flag=True,
    help="Join an existing coordinator as a node to be added with `add`.",
)
@click.option("--stop-with-stdin", is_flag=True, hidden=True)
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
    stop_with_stdin: bool,
) -> None:
    """Run one node until Ctrl-C or SIGTERM.

    Logs each state change as a line of key=value on stderr, or with --json as one
    JSON object per line on stdout.
    """
    from paceline.coordinator.admin.serve import serve
    from paceline.coordinator.client.endpoints import node_credentials
    from paceline.coordinator.raft.types import NodeId
    from paceline.coordinator.server.server import Settings

    nodes = _peers(peers)
    address = _address(node, nodes, listen)
    folder = session.folder / data_dir
    others = [peer_address for other, peer_address in nodes.items() if other != node]
    settings = Settings(
        node=NodeId(node),
        listen=address,
        peers={NodeId(other): peer_address for other, peer_address in nodes.items()},
        data_dir=folder,
        proof=node_credentials(node, [address, *others], folder, token_file, tls_dir),
        cluster=cluster,
        is_joining=is_joining,
    )
    serve(settings, lambda note: _print_node_event(session, settings, note), stops_with_stdin=stop_with_stdin)


def _address(node: int, known: dict[int, str], listen: str | None) -> str:
    if listen is not None:
        return parse_node(f"{node}={listen}", "--listen")[1]
    if node not in known:
        message = f"node {node} is not one of the nodes {sorted(known)}"
        raise ClusterOptionError(
            [Problem(message, f"add {node}=HOST:PORT to --peers, or use --listen", "--peers")]
        )
    return known[node]


def _peers(text: str) -> dict[int, str]:
    by_number: dict[int, str] = {}
    for part in text.split(","):
        number, address = parse_node(part, "--peers")
        if number in by_number:
            problem = Problem(f"{text!r} names node {number} twice", "give each node its number", "--peers")
            raise ClusterOptionError([problem])
        by_number[number] = address
    return by_number


def _print_node_event(session: Session, settings: "Settings", note: "Note") -> None:
    from paceline.core import clock
    from paceline.plan.codec import to_json

    now = datetime.fromtimestamp(clock.unix_now_s(), UTC).isoformat(timespec="milliseconds")
    time = now.replace("+00:00", "Z")
    if session.common.json:
        facts: dict[str, Json] = {key: to_json(value) for key, value in note.facts.items()}
        fields: dict[str, Json] = {"time": time, "node": settings.node, "event": note.event, **facts}
        print(json.dumps({"schema": "paceline.coordinator.note/1", **fields}), file=sys.stdout, flush=True)
    else:
        print_message(session, f"time={time} node={settings.node} {note}")


@click.command("up")
@click.option(
    "--nodes", type=click.IntRange(1, 9), help="Number of nodes. [default: 3, or as many as the folder has]"
)
@click.option(
    "--dir", "folder", type=PATH, default=DEFAULT_DIR, show_default=True, help="Folder for the nodes' data."
)
@click.option("--token-file", type=PATH, help=_TOKENS)
@click.option("--compose", type=PATH, metavar="FILE", help="Compose file to write instead of starting nodes.")
@click.option("--image", metavar="NAME", help="Container image, with --compose.")
@click.option(
    "--tls-dir",
    type=PATH,
    help="Folder with certificates from init-pki, with --compose. [default: pki, next to FILE]",
)
@common_options
def up(
    session: Session,
    nodes: int | None,
    folder: Path,
    token_file: Path | None,
    compose: Path | None,
    image: str | None,
    tls_dir: Path | None,
) -> None:
    """Run all nodes of a coordinator on this machine until Ctrl-C.

    Each node is a separate process. Run the same command again to restart from the
    state in the folder. With --compose nothing is started.
    """
    if compose is not None:
        _write_compose(session, session.folder / compose, nodes, image, tls_dir)
        return
    if image is not None or tls_dir is not None:
        what = "--image and --tls-dir need --compose"
        raise ClusterOptionError([Problem(what, "add --compose FILE, or leave them out", "--compose")])
    from paceline.coordinator.admin.launch import run_nodes as run_up

    def on_ready(report: "StatusReport") -> None:
        _print_ready(session, folder, report)

    run_up(session.folder / folder, nodes, token_file, lambda line: print_message(session, line), on_ready)


def _print_ready(session: Session, folder: Path, report: "StatusReport") -> None:
    nodes: list[Json] = [{"node": line.node, "address": line.address} for line in report.nodes]
    data: dict[str, Json] = {
        "cluster": report.cluster,
        "dir": str(folder),
        "leader": report.leader,
        "term": report.term,
        "nodes": nodes,
    }
    where = "" if folder == DEFAULT_DIR else f" --dir {folder}"
    lines = [
        f"node {report.leader} leads in term {report.term}",
        f"status: paceline coordinator status{where}; stop: Ctrl-C",
    ]
    emit(session, "coordinator.up", data, lines)
    sys.stdout.flush()


def _write_compose(
    session: Session, path: Path, nodes: int | None, image: str | None, tls_dir: Path | None
) -> None:
    from paceline.coordinator.admin.launch import DEFAULT_NODES, pki_command, write_compose

    if not image:
        problem = Problem("a compose file needs an image", "add --image NAME", "--image")
        raise ClusterOptionError([problem])
    count = nodes or DEFAULT_NODES
    keys = path.parent / "pki" if tls_dir is None else session.folder / tls_dir
    write_compose(path, count, image, keys)
    command = pki_command(count, keys)
    has_keys = (keys / "ca.crt").exists()
    lines = [f"wrote {path}: {count} nodes of {image}"]
    lines += [] if has_keys else [f"create the certificates first: {command}"]
    data: dict[str, Json] = {"file": str(path), "nodes": count, "image": image, "init_pki": command}
    emit(session, "coordinator.up", data, lines)
