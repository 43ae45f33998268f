"""`paceline ray`: a small cluster here, and runs that are handed to a cluster."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.ray_jobs import list_jobs, logs, state_option, status, stop, submit
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.app.ray_cluster import Cluster
    from paceline.plan.codec import Json


@click.group("ray")
@common_options
def ray(session: Session) -> None:
    """Make a small Ray cluster here, and hand runs to a cluster."""


@ray.command("up")
@click.option("--nodes", type=click.IntRange(1, 16), default=2, show_default=True, help="How many nodes.")
@click.option(
    "--cpus-per-node",
    type=click.IntRange(1, 1024),
    default=2,
    show_default=True,
    help="What each says that it has; all share this machine's.",
)
@click.option("--dashboard/--no-dashboard", default=True, help="Jobs need it. [default: yes]")
@state_option
@common_options
def up(session: Session, nodes: int, cpus_per_node: int, dashboard: bool, state: Path) -> None:
    """Start a cluster of separate raylets on 127.0.0.1, for trying and teaching.

    Said twice, it says where the cluster is. `paceline ray down` ends it.
    """
    from paceline.app.ray_cluster import up as start

    cluster, is_new = start(state, nodes=nodes, cpus=cpus_per_node, has_dashboard=dashboard)
    say(session, f"{len(cluster.nodes)} nodes {'are up' if is_new else 'were up already'}; logs in {state}")
    lines = [f"address    {cluster.address}", f"client     {cluster.client}"]
    lines += [f"dashboard  {cluster.dashboard}"] if cluster.dashboard else []
    lines += [f"node {n}     pid {node.pid}, {node.cpus} CPUs" for n, node in enumerate(cluster.nodes)]
    lines += [f"next       paceline train --launcher ray --address {cluster.address}"]
    emit(session, "ray.up", _told(cluster, is_new), lines)


def _told(cluster: "Cluster", is_new: bool) -> "Json":
    nodes: list[Json] = [{"pid": node.pid, "cpus": node.cpus} for node in cluster.nodes]
    told: dict[str, Json] = {name: value for name, value in asdict(cluster).items() if name != "nodes"}
    return {**told, "nodes": nodes, "is_new": is_new}


@ray.command("down")
@state_option
@common_options
def down(session: Session, state: Path) -> None:
    """End the cluster that `up` started; nothing of it is left."""
    from paceline.app.ray_cluster import down as end

    ended = end(state)
    emit(session, "ray.down", {"nodes": ended}, [f"{ended} nodes ended" if ended else "no cluster was up"])


for command in (submit, status, logs, stop, list_jobs):
    ray.add_command(command)
