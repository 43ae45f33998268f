"""`paceline coordinator add`, `remove`, `step-down`, `snapshot`, `kill`: change a cluster that runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.asking import is_sure, yes_option
from paceline.cli.coordinator_options import (
    PATH,
    USUAL_DIR,
    cluster_options,
    read_node,
    timeout_option,
    waited_for,
)
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ClusterWishError, ExitCode, Problem

if TYPE_CHECKING:
    from paceline.app.cluster_access import Cluster
    from paceline.coordinator.proto.cluster_pb2 import NodeStatus
    from paceline.plan.codec import Json


@click.command("add")
@click.argument("node", metavar="ID=HOST:PORT")
@timeout_option(30.0)
@common_options
@cluster_options
def add(session: Session, cluster: "Cluster", node: str, timeout_s: float) -> None:
    """Take a running node in: it learns first, and votes once it has caught up.

    Start it before, with --join and a number that was never used.
    """
    from paceline.app import cluster_change

    number, address = read_node(node, "NODE")
    status = waited_for(cluster_change.add(cluster, number, address, patience_s=timeout_s))
    _emit(session, "add", status, f"node {number} votes at {address}")


@click.command("remove")
@click.argument("node", type=click.IntRange(min=1), metavar="ID")
@timeout_option(10.0)
@common_options
@cluster_options
def remove(session: Session, cluster: "Cluster", node: int, timeout_s: float) -> None:
    """Put a node out. It keeps running until it is stopped, but counts no more."""
    from paceline.app import cluster_change

    status = waited_for(cluster_change.remove(cluster, node, patience_s=timeout_s))
    _emit(session, "remove", status, f"node {node} takes no part any more, and can be stopped")


@click.command("step-down")
@click.option(
    "--to", type=click.IntRange(min=1), metavar="ID", help="Who is to lead. [default: who has most]"
)
@timeout_option(10.0)
@common_options
@cluster_options
def step_down(session: Session, cluster: "Cluster", to: int | None, timeout_s: float) -> None:
    """Let another node lead, for instance before the leader's machine is restarted."""
    from paceline.app import cluster_change

    status = waited_for(cluster_change.step_down(cluster, to, patience_s=timeout_s))
    _emit(session, "step-down", status, f"node {status.leader} leads in term {status.term}")


@click.command("snapshot")
@click.option("--node", metavar="ID|all", default="all", show_default=True, help="Of which node.")
@timeout_option(30.0)
@common_options
@cluster_options
def snapshot(session: Session, cluster: "Cluster", node: str, timeout_s: float) -> None:
    """Let nodes write their state down in the place of the log that led to it.

    They also do it by themselves, once the log is long.
    """
    from paceline.app import cluster_change

    if node != "all" and not (node.isdecimal() and int(node) >= 1):
        what = f"{node!r} is no node's number"
        raise ClusterWishError([Problem(what, "write --node 2, or --node all", "--node")])
    number = None if node == "all" else int(node)
    taken = waited_for(cluster_change.snapshot(cluster, number, patience_s=timeout_s))
    data: list[Json] = [{"node": found.node, "index": found.index} for found in taken]
    lines = [f"node {found.node} has a snapshot up to entry {found.index}" for found in taken]
    emit(session, "coordinator.snapshot", {"snapshots": data}, lines)


@click.command("kill")
@click.argument("node", type=click.IntRange(min=1), required=False, metavar="[ID]")
@click.option(
    "--dir", "folder", type=PATH, default=USUAL_DIR, show_default=True, help="A folder made by `up`."
)
@timeout_option(30.0)
@yes_option
@common_options
def kill(session: Session, node: int | None, folder: Path, timeout_s: float, yes: bool) -> ExitCode:
    """kill -9 of node ID, else of the one that leads, and who leads then; for experiments.

    Of a cluster that `up` runs on this machine. A node that is dead stays so until `up` is started again.
    """
    from paceline.app import cluster_kill
    from paceline.app.cluster_access import Where, find

    place = session.folder / folder
    cluster = find(Where(usual_folder=place, folder=place))
    whom = "the node that leads" if node is None else f"node {node}"
    if not is_sure(session, f"kill {whom} of the cluster in {folder}", yes=yes):
        return ExitCode.INTERRUPTED
    done = waited_for(cluster_kill.kill(place, cluster, node, patience_s=timeout_s))
    what = f"node {done.node} {'led term ' + str(done.term) if done.was_leader else 'followed'}, and is dead"
    then = "too few nodes are left: nobody can lead, and nothing can be agreed on"
    if done.leader is not None:
        then = f"node {done.leader} leads in term {done.new_term}"
    emit(session, "coordinator.kill", dict(asdict(done)), [f"{what}; {then}"])
    say(session, "next: paceline coordinator status; once `up` is started again, the node is back")
    return ExitCode.OK


def _emit(session: Session, command: str, status: "NodeStatus", first: str) -> None:
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
