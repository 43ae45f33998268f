"""`paceline coordinator lighthouse`: a replicated replacement of torchft's lighthouse."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import coordinator_options, run_async, timeout_option
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.client.endpoints import Endpoints
    from paceline.coordinator.proto import cluster_pb2 as pb
    from paceline.coordinator.torchft.lighthouse import Serving
    from paceline.plan.codec import Json

_SECONDS = click.FloatRange(min=0.001, max=86_400)


@click.group("lighthouse")
@common_options
def lighthouse(session: Session) -> None:
    """Serve a fault-tolerant torchft lighthouse."""


@lighthouse.command("proxy")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:29510",
    show_default=True,
    help="Address to listen on for managers of this machine (port 0 = any free port).",
)
@click.option("--job", default="torchft", show_default=True, help="Name of the job, shared by its replicas.")
@click.option(
    "--min-replicas",
    type=click.IntRange(1, 10_000),
    help="Minimum number of replicas in a quorum. [default: the job's, else 1]",
)
@click.option(
    "--join-timeout-s",
    type=_SECONDS,
    help="Seconds that a quorum waits for live replicas that have not joined. [default: the job's, else 60]",
)
@click.option(
    "--heartbeat-timeout-s",
    type=_SECONDS,
    help="Heartbeat timeout of a replica in seconds. [default: the job's, else 5]",
)
@click.option(
    "--open-to-network", is_flag=True, help="Allow --listen beyond loopback, without authentication."
)
@click.option("--stop-with-stdin", is_flag=True, hidden=True)
@common_options
@coordinator_options
def proxy(
    session: Session,
    cluster: "Endpoints",
    listen: str,
    job: str,
    min_replicas: int | None,
    join_timeout_s: float | None,
    heartbeat_timeout_s: float | None,
    open_to_network: bool,
    stop_with_stdin: bool,
) -> None:
    """Serve torchft's managers on this machine until Ctrl-C, across leader changes.

    Prints the environment variables for workers. Run one proxy on every machine that
    has workers; a job's settings are those of its first proxy.
    """
    from paceline.coordinator.torchft.lighthouse import ProxySettings, serve

    settings = ProxySettings(
        listen=listen,
        job=job,
        min_replicas=min_replicas,
        join_timeout_s=join_timeout_s,
        heartbeat_timeout_s=heartbeat_timeout_s,
        is_open_to_network=open_to_network,
    )
    serve(
        cluster,
        settings,
        lambda line: print_message(session, line),
        lambda serving: _print_ready(session, serving),
        stops_with_stdin=stop_with_stdin,
    )


def _print_ready(session: Session, serving: "Serving") -> None:
    nodes: list[Json] = list(serving.nodes)
    data: dict[str, Json] = {"url": serving.url, **_settings(serving.lighthouse), "nodes": nodes}
    lines = [f"export TORCHFT_LIGHTHOUSE={serving.url}"]
    emit(session, "lighthouse.proxy", data, lines)
    sys.stdout.flush()


@lighthouse.command("status")
@timeout_option(5.0)
@common_options
@coordinator_options
def status(session: Session, cluster: "Endpoints", timeout_s: float) -> None:
    """List the jobs and the members of each quorum."""
    from paceline.coordinator.torchft.lighthouse import jobs

    states = run_async(jobs(cluster, patience_s=timeout_s))
    rows: list[Json] = [_row(state) for state in states]
    lines = [line for state in states for line in _lines(state)] or [
        "no torchft job is registered with this cluster"
    ]
    emit(session, "lighthouse.status", {"jobs": rows}, lines)


@lighthouse.command("forget")
@click.argument("job")
@timeout_option(10.0)
@common_options
@coordinator_options
def forget(session: Session, cluster: "Endpoints", job: str, timeout_s: float) -> None:
    """Delete JOB with its settings and members, and stop its proxies."""
    from paceline.coordinator.torchft.lighthouse import forget as forget_job

    forgotten = run_async(forget_job(cluster, job, patience_s=timeout_s))
    emit(session, "lighthouse.forget", _settings(forgotten), [f"forgot job {forgotten.job}"])


def _settings(entry: "pb.Lighthouse") -> "dict[str, Json]":
    return {
        "job": entry.job,
        "min_replicas": entry.min_replicas,
        "join_timeout_s": entry.join_timeout_ms / 1000,
        "heartbeat_timeout_s": entry.heartbeat_timeout_ms / 1000,
    }


def _row(state: "pb.LighthouseState") -> "dict[str, Json]":
    members: list[Json] = [
        {"replica_id": slot.member.replica_id, "step": slot.member.step, "address": slot.member.address}
        for slot in state.issued.seats
    ]
    entry = state.lighthouse
    data = {**_settings(entry), "quorum_id": entry.quorum_id, "since_ms": entry.since_ms, "members": members}
    return {**data, "issued_ms": state.issued.created_ms}


def _lines(state: "pb.LighthouseState") -> list[str]:
    entry = state.lighthouse
    if not entry.quorum_id:
        return [f"{entry.job}: no quorum yet (needs {entry.min_replicas} replicas)"]
    since = datetime.fromtimestamp(entry.since_ms / 1000, UTC).isoformat(timespec="seconds")
    head = f"{entry.job}: quorum {entry.quorum_id} of {len(entry.replicas)} replicas since {since}"
    return [head, *(f"  {slot.member.replica_id} step {slot.member.step}" for slot in state.issued.seats)]
