"""`paceline agent`: start workers of elastic runs on this host; `paceline coordinator agents`: list them."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import PATH, coordinator_options, run_async, timeout_option
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core import environ
from paceline.core.errors import ClusterOptionError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.client.endpoints import Endpoints
    from paceline.launchers.agents.agent import AgentRow
    from paceline.plan.codec import Json


@click.command("agent")
@click.option(
    "--join",
    metavar="HOST:PORT[,…]",
    multiple=True,
    help="Nodes of the coordinator. Repeatable. [default: PACELINE_COORDINATOR]",
)
@click.option("--token-file", type=PATH, help="File with the coordinator's token. [default: tokens.json]")
@click.option("--tls-dir", type=PATH, help="Folder with a worker's certificate. [default: PACELINE_TLS_DIR]")
@click.option("--tls-name", metavar="NAME", help="Client whose certificate to use. [default: any worker's]")
@click.option("--slots", type=click.IntRange(1, 1024), help="Participants at once. [default: one per CPU]")
@click.option("--name", help="Name of this host in the fleet. [default: its host name]")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of this host. Repeatable.")
@click.option("--scratch", type=PATH, help="Folder for files on their way to a run. [default: temporary]")
@click.option(
    "--drain-timeout",
    "drain_timeout_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds that workers have to leave after SIGTERM.",
)
@click.option("--run", metavar="NAME", help="Serve runs of this name only. [default: all of the coordinator]")
@click.option(
    "--exit-code",
    type=click.IntRange(0, 255),
    default=0,
    show_default=True,
    help="Exit code after SIGTERM; 143 makes a Kubernetes Job replace the pod.",
)
@common_options
def agent(
    session: Session,
    join: tuple[str, ...],
    token_file: Path | None,
    tls_dir: Path | None,
    tls_name: str | None,
    slots: int | None,
    name: str | None,
    labels: Sequence[str],
    scratch: Path | None,
    drain_timeout_s: float,
    run: str | None,
    exit_code: int,
) -> int:
    """Start workers of `train --launcher agents` on this host, until Ctrl-C or SIGTERM.

    Then the workers leave after a committed step, other hosts replace them, and the agent ends. A task's
    module is imported from the folder in which the agent is started.
    """
    environ.set_default_variables(GRPC_VERBOSITY="ERROR")  # it writes a line for each idle connection
    from paceline.coordinator.client.endpoints import choose_coordinators
    from paceline.launchers.agents.agent import AgentSettings, run_agent

    coordinators = choose_coordinators(
        join,
        token_file=session.resolve_path(token_file),
        tls_dir=session.resolve_path(tls_dir),
        tls_name=tls_name,
    )
    if coordinators is None:
        message = "no coordinator is named, so there is no fleet to join"
        raise ClusterOptionError([Problem(message, "add --join HOST:PORT", "--join")])
    settings = AgentSettings(
        coordinators=coordinators,
        name=name or socket.gethostname(),
        slots=slots or len(os.sched_getaffinity(0)),
        labels=_parse_labels(labels),
        scratch=session.resolve_path(scratch),
        drain_timeout_s=drain_timeout_s,
        run=run,
    )
    print_message(
        session, f"agent {settings.name}: {settings.slots} slots, joining {','.join(coordinators.addresses)}"
    )
    run_agent(settings, lambda text: print_message(session, text))
    return exit_code


def _parse_labels(labels: Sequence[str]) -> Mapping[str, str]:
    parsed = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals or "," in label:
            message = f"{label!r} is not KEY=VALUE"
            raise ClusterOptionError([Problem(message, "write for example --label zone=a", "--label")])
        parsed[key] = value
    return parsed


@click.command("agents")
@timeout_option(2.0)
@common_options
@coordinator_options
def agents(session: Session, cluster: "Endpoints", timeout_s: float) -> None:
    """List the hosts whose agents have joined, with what each of them offers."""
    from paceline.launchers.agents.agent import list_agents

    rows = run_async(list_agents(cluster, patience_s=timeout_s))
    data: list[Json] = [asdict(row) for row in rows]
    emit(session, "coordinator.agents", {"agents": data}, [_agent_line(row) for row in rows] or ["no agents"])


def _agent_line(row: "AgentRow") -> str:
    size = f"{row.slots} slots  {row.cpus} CPUs  {row.memory_gb:g} GB"
    return f"{row.name:<20}{row.address:<16}{size}  paceline {row.paceline}  {row.labels}".rstrip()
