"""`paceline coordinator`: status and membership of the Raft nodes, snapshots, certificates."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli import coordinator_start
from paceline.cli.agent import agents
from paceline.cli.coordinator_options import (
    DEFAULT_DIR,
    PATH,
    coordinator_options,
    parse_node,
    run_async,
    timeout_option,
)
from paceline.cli.lighthouse import lighthouse
from paceline.cli.options import common_options
from paceline.cli.output import confirm, emit, print_message, yes_option
from paceline.core.errors import ClusterOptionError, ExitCode, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.admin.status import NodeRow, StatusReport
    from paceline.coordinator.admin.verify import RunLine, Verified
    from paceline.coordinator.client.endpoints import Endpoints
    from paceline.coordinator.proto.cluster_pb2 import NodeStatus
    from paceline.plan.codec import Json


@click.command("add")
@click.argument("node", metavar="ID=HOST:PORT")
@timeout_option(30.0)
@common_options
@coordinator_options
def add(session: Session, cluster: "Endpoints", node: str, timeout_s: float) -> None:
    """Add a running node: it joins as a learner and becomes a voter once it has caught up.

    Start the node first, with --join and a number that was never used.
    """
    from paceline.coordinator.admin import operations

    number, address = parse_node(node, "NODE")
    status = run_async(operations.add_node(cluster, number, address, patience_s=timeout_s))
    _emit_node(session, "add", status, f"node {number} is a voter at {address}")


@click.command("remove")
@click.argument("node", type=click.IntRange(min=1), metavar="ID")
@timeout_option(10.0)
@common_options
@coordinator_options
def remove(session: Session, cluster: "Endpoints", node: int, timeout_s: float) -> None:
    """Remove a node from the membership. Its process keeps running until it is stopped."""
    from paceline.coordinator.admin import operations

    status = run_async(operations.remove_node(cluster, node, patience_s=timeout_s))
    _emit_node(session, "remove", status, f"node {node} is no longer a member, and can be stopped")


@click.command("step-down")
@click.option(
    "--to",
    type=click.IntRange(min=1),
    metavar="ID",
    help="Node to transfer leadership to. [default: the most up-to-date node]",
)
@timeout_option(10.0)
@common_options
@coordinator_options
def step_down(session: Session, cluster: "Endpoints", to: int | None, timeout_s: float) -> None:
    """Transfer leadership to another node, for example before a restart of the leader's machine."""
    from paceline.coordinator.admin import operations

    status = run_async(operations.step_down(cluster, to, patience_s=timeout_s))
    _emit_node(session, "step-down", status, f"node {status.leader} leads in term {status.term}")


@click.command("snapshot")
@click.option("--node", metavar="ID|all", default="all", show_default=True, help="Node to compact.")
@timeout_option(30.0)
@common_options
@coordinator_options
def snapshot(session: Session, cluster: "Endpoints", node: str, timeout_s: float) -> None:
    """Take a snapshot of the state and truncate the log.

    Nodes also do this automatically when the log is long.
    """
    from paceline.coordinator.admin import operations

    if node != "all" and not (node.isdecimal() and int(node) >= 1):
        message = f"{node!r} is not a node number"
        raise ClusterOptionError([Problem(message, "write --node 2, or --node all", "--node")])
    number = None if node == "all" else int(node)
    taken = run_async(operations.take_snapshots(cluster, number, patience_s=timeout_s))
    data: list[Json] = [{"node": result.node, "index": result.index} for result in taken]
    lines = [f"node {result.node} has a snapshot up to entry {result.index}" for result in taken]
    emit(session, "coordinator.snapshot", {"snapshots": data}, lines)


@click.command("kill")
@click.argument("node", type=click.IntRange(min=1), required=False, metavar="[ID]")
@click.option(
    "--dir", "folder", type=PATH, default=DEFAULT_DIR, show_default=True, help="Folder created by `up`."
)
@timeout_option(30.0)
@yes_option
@common_options
def kill(session: Session, node: int | None, folder: Path, timeout_s: float, yes: bool) -> ExitCode:
    """Kill (kill -9) node ID, or the leader, and report the new leader; for experiments.

    Works on a coordinator that `up` runs on this machine. The node stays down until `up` is started again.
    """
    from paceline.coordinator.admin import operations
    from paceline.coordinator.client.endpoints import EndpointOptions, find_endpoints

    cluster_dir = session.folder / folder
    cluster = find_endpoints(EndpointOptions(usual_folder=cluster_dir, folder=cluster_dir))
    target = "the leader" if node is None else f"node {node}"
    if not confirm(session, f"kill {target} of the cluster in {folder}", yes=yes):
        return ExitCode.INTERRUPTED
    done = run_async(operations.kill_node(cluster_dir, cluster, node, patience_s=timeout_s))
    killed = (
        f"node {done.node} {'led term ' + str(done.term) if done.was_leader else 'followed'}, and was killed"
    )
    election = "quorum is lost: no leader can be elected and no writes can be committed"
    if done.leader is not None:
        election = f"node {done.leader} leads in term {done.new_term}"
    emit(session, "coordinator.kill", dict(asdict(done)), [f"{killed}; {election}"])
    print_message(session, "next: paceline coordinator status; `paceline coordinator up` restarts the node")
    return ExitCode.OK


def _emit_node(session: Session, command: str, status: "NodeStatus", first: str) -> None:
    voters: list[Json] = [peer.node for peer in status.peers if peer.is_voter]
    learners: list[Json] = [peer.node for peer in status.peers if not peer.is_voter]
    data: dict[str, Json] = {
        "cluster": status.cluster,
        "leader": status.leader or None,
        "term": status.term,
        "voters": voters,
        "learners": learners,
    }
    lines = [first, f"voters: {', '.join(map(str, voters))}"]
    lines += [f"learners: {', '.join(map(str, learners))}"] if learners else []
    emit(session, f"coordinator.{command}", data, lines)


@click.command("verify")
@click.argument("data_dir", type=PATH)
@common_options
def verify(session: Session, data_dir: Path) -> None:
    """Verify the Raft log in DATA_DIR; read-only.

    Reads every record, applies every command and reports the resulting state. Works on
    a copy, and while the node runs. Exit code 8 if the log is corrupted; an incomplete
    last record is not corruption, since it was never acknowledged.
    """
    from paceline.coordinator.admin.verify import verify as check
    from paceline.plan.codec import to_json

    report = check(session.folder / data_dir)
    emit(session, "coordinator.verify", to_json(report), _verified_lines(data_dir, report))


def _verified_lines(folder: Path, report: "Verified") -> list[str]:
    lines = [f"{folder} is valid: node {report.node}, term {report.term}, up to entry {report.last_index}"]
    if report.is_in_use:
        lines.append("in use    a node is running and may write during the check")
    if report.torn_bytes:
        lines.append(f"torn end  {report.torn_bytes} bytes, harmless: not acknowledged")
    if report.unknown_commands:
        lines.append(f"unknown   {report.unknown_commands} commands of a newer version were skipped")
    entries = f"{report.first_index} to {report.last_index}" if report.first_index else "none"
    lines += [
        f"snapshot  up to entry {report.snapshot_index}, {report.snapshot_bytes} bytes",
        f"log       entries {entries}, {report.commands} commands; {report.records} records",
        f"vote      {'none' if report.vote is None else f'for node {report.vote}'} in term {report.term}",
        f"voters    {_numbers(report.voters)}; learners {_numbers(report.learners)}",
        f"sessions  {report.sessions}; actions {report.actions}; runs {len(report.runs)}",
    ]
    return lines + [_run_line(run) for run in report.runs]


def _run_line(run: "RunLine") -> str:
    return (
        f"run       {run.run}: {run.phase}, generation {run.generation}, step {run.committed_step}, "
        f"{run.workers} workers, {run.checkpoints} checkpoints"
    )


def _numbers(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"


@click.command("init-pki")
@click.option("--out", "folder", type=PATH, required=True, help="Output folder.")
@click.option(
    "--node", "nodes", multiple=True, metavar="ID=HOST[,HOST…]", help="Node and its addresses. Repeatable."
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME=ROLE",
    help="Client and its role: admin, worker or viewer. Repeatable. [default: one of each]",
)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=825,
    show_default=True,
    help="Validity of the certificates in days.",
)
@click.option(
    "--add",
    "is_adding",
    is_flag=True,
    help="Add certificates signed by the existing authority in this folder.",
)
@common_options
def init_pki(
    session: Session,
    folder: Path,
    nodes: tuple[str, ...],
    clients: tuple[str, ...],
    days: int,
    is_adding: bool,
) -> None:
    """Create a certificate authority, and certificates for nodes and clients.

    Existing files are never overwritten. Copy ca.crt and its own two files to each machine,
    and store ca.key elsewhere.
    """
    from paceline.coordinator.server import tls
    from paceline.core import clock

    written = tls.init_pki(
        session.folder / folder,
        [tls.parse_node(text) for text in nodes],
        [tls.parse_client(text) for text in clients],
        now_s=clock.unix_now_s(),
        days=days,
        add=is_adding,
    )
    files: list[Json] = [str(path) for path in written]
    emit(session, "coordinator.init-pki", {"files": files}, [f"wrote {path}" for path in written])


@click.command("status")
@click.option("--only", is_flag=True, help="Query only the given nodes; exit code 0 if they respond.")
@timeout_option(2.0)
@common_options
@coordinator_options
def status(session: Session, cluster: "Endpoints", only: bool, timeout_s: float) -> ExitCode:
    """Show the leader and the state of every node.

    Exit code 0 if there is a leader and all voters are up, 6 if not, 7 if no node
    responds. Lag and connection are reported by the leader.
    """
    from paceline.coordinator.admin.status import fetch_status
    from paceline.plan.codec import to_json

    report = run_async(fetch_status(cluster, patience_s=timeout_s, only=only))
    is_well = all(line.answers for line in report.nodes) if only else report.is_healthy
    data = to_json(report)
    assert isinstance(data, dict), "a dataclass becomes an object"
    emit(session, "coordinator.status", {**data, "is_healthy": is_well}, _status_lines(report))
    return ExitCode.OK if is_well else ExitCode.DEGRADED


def _status_lines(report: "StatusReport") -> list[str]:
    voters = [line for line in report.nodes if line.is_voter]
    present = len(voters) - len(report.missing)
    leader = "no leader" if report.leader is None else f"leader node {report.leader}"
    quorum = f"{present} of {len(voters)} voters are up"
    first = f"cluster {report.cluster}: {leader}, term {report.term}; {quorum}"
    heads = ("node", "address", "role", "term", "commit", "applied", "lag", "connected")
    rows = [heads, *(_status_row(line) for line in report.nodes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    table = [_aligned(row, widths) for row in rows]
    problems = [f"{line.address}: {line.problem}" for line in report.nodes if line.problem]
    return [first, "", *table, *([""] if problems else []), *problems]


def _status_row(line: "NodeRow") -> tuple[str, ...]:
    connected = {None: "-", True: "yes", False: "no"}[line.is_connected]
    node = "?" if line.node is None else str(line.node)
    numbers = (line.term, line.commit, line.applied, line.lag)
    return node, line.address, line.role, *("-" if n is None else str(n) for n in numbers), connected


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Text aligned left, numbers right."""
    cells = [
        cell.rjust(width) if column in (0, 3, 4, 5, 6) else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


class _OrderedGroup(click.Group):
    """Lists commands in the order of use, not alphabetically."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("coordinator", cls=_OrderedGroup)
@common_options
def coordinator(session: Session) -> None:
    """Run the Raft-replicated coordinator.

    Its nodes replicate membership, checkpoints and requests of runs. `up` starts
    several nodes on this machine.
    """


for command in (
    coordinator_start.up,
    coordinator_start.start,
    status,
    agents,
    add,
    remove,
    step_down,
    snapshot,
    kill,
    verify,
    init_pki,
    lighthouse,
):
    coordinator.add_command(command)
