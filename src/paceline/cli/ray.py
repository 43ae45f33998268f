"""`paceline ray`: a local Ray cluster, and jobs submitted to a Ray cluster."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import SettingsCommand, common_options, config_options
from paceline.cli.output import emit, print_message
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, ExitCode, Problem
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.launchers.ray.jobs import Job, Jobs
    from paceline.launchers.ray.local_cluster import LocalCluster
    from paceline.plan.codec import Json


def state_option(body: Callable[..., object]) -> Callable[..., object]:
    from paceline.launchers.ray.local_cluster import default_folder

    return click.option(
        "--state",
        type=click.Path(path_type=Path),
        default=default_folder,
        help="Folder for the state of local clusters. [default: ~/.local/state/paceline/ray]",
    )(body)


def _dashboard_option(body: Callable[..., object]) -> Callable[..., object]:
    name = "URL of the cluster's dashboard, http://HOST:8265. [default: that of `paceline ray up`]"
    return click.option("--dashboard", metavar="URL", help=name)(state_option(body))


@click.command("submit", cls=SettingsCommand)
@config_options
@_dashboard_option
@common_options
def submit(session: Session, flags: Sequence[RawSetting], dashboard: str | None, state: Path) -> None:
    """Submit a run to a Ray cluster, with the options of `paceline train`, and print its id.

    The run is queued until the cluster has room.
    """
    from paceline.launchers.ray.jobs import dashboard_address, job_name, submit_job
    from paceline.training.request import read_request

    given = {flag.key: flag for flag in flags}
    if "launcher" in given and given["launcher"].raw != "ray":
        message = f"launcher is {given['launcher'].raw}, but a job of a Ray cluster uses launcher ray"
        raise ConfigError([Problem(message, "leave launcher out", "--launcher")])
    if "address" in given:
        message = "address is set, but a job uses the cluster that it runs on"
        raise ConfigError(
            [Problem(message, "name the cluster with --dashboard http://HOST:8265", "--address")]
        )
    address = dashboard_address(dashboard, state)
    launcher = RawSetting(key="launcher", raw="ray", where="paceline ray submit")
    plan = read_request(session, [*flags, *([] if "launcher" in given else [launcher])]).plan
    job = job_name(plan.run)
    run_dir = (
        session.folder / (str(given["run_dir"].raw) if "run_dir" in given else f"runs/{job}")
    ).resolve()
    common = session.common
    done = submit_job(
        address, job=job, flags=flags, sets=common.sets, config=common.config, run_dir=run_dir, folder=state
    )
    print_message(session, f"submitted to {address}; it starts when resources are free")
    lines = [done.id, f"run folder {run_dir}", f"next       paceline ray logs --follow {done.id}"]
    emit(session, "ray.submit", asdict(done), lines)


def _jobs(dashboard: str | None, state: Path) -> "Jobs":
    from paceline.launchers.ray.jobs import Jobs, dashboard_address

    return Jobs(dashboard_address(dashboard, state))


@click.command("status")
@click.argument("job")
@_dashboard_option
@common_options
def status(session: Session, job: str, dashboard: str | None, state: Path) -> None:
    """Show the status of JOB."""
    found_job = _jobs(dashboard, state).job(job)
    emit(session, "ray.status", asdict(found_job), [_line(found_job), found_job.message])


@click.command("logs")
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Follow until the job ends.")
@_dashboard_option
@common_options
def logs(session: Session, job: str, follow: bool, dashboard: str | None, state: Path) -> ExitCode:
    """Print the log of JOB; with --follow until it ends, with exit code 5 if it failed."""
    jobs = _jobs(dashboard, state)
    if follow and not session.common.json:
        jobs.follow(job, _print_at_once)
    elif follow:
        jobs.follow(job, lambda _: None)
    text = jobs.logs(job) if session.common.json or not follow else ""
    finished = jobs.job(job)
    emit(session, "ray.logs", {**asdict(finished), "logs": text}, text.splitlines())
    return ExitCode.TRAINING_FAILED if follow and finished.status == "failed" else ExitCode.OK


def _print_at_once(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@click.command("stop")
@click.argument("job")
@_dashboard_option
@common_options
def stop(session: Session, job: str, dashboard: str | None, state: Path) -> None:
    """Stop JOB; it saves a checkpoint if Ray's grace period of a few seconds allows it."""
    is_asked = _jobs(dashboard, state).stop(job)
    line = f"{job}: stop requested" if is_asked else f"{job} had ended already"
    emit(session, "ray.stop", {"id": job, "is_asked": is_asked}, [line])


@click.command("list")
@_dashboard_option
@common_options
def list_jobs(session: Session, dashboard: str | None, state: Path) -> None:
    """List the cluster's jobs, oldest first."""
    jobs = _jobs(dashboard, state).all()
    lines = [_line(job) for job in jobs] or ["no jobs"]
    emit(session, "ray.list", {"jobs": [asdict(job) for job in jobs]}, lines)


def _line(job: "Job") -> str:
    where = "" if job.run_dir is None else f"  {job.run_dir}"
    return f"{job.id:<32} {job.status:<10}{where}"


@click.group("ray")
@common_options
def ray(session: Session) -> None:
    """Start a local Ray cluster; submit runs to one."""


@ray.command("up")
@click.option("--nodes", type=click.IntRange(1, 16), default=2, show_default=True, help="Number of nodes.")
@click.option(
    "--cpus-per-node",
    type=click.IntRange(1, 1024),
    default=2,
    show_default=True,
    help="CPUs that each node advertises; all share this machine's.",
)
@click.option(
    "--dashboard/--no-dashboard", default=True, help="Start Ray's dashboard, which jobs need. [default: yes]"
)
@state_option
@common_options
def up(session: Session, nodes: int, cpus_per_node: int, dashboard: bool, state: Path) -> None:
    """Start a cluster of separate raylets on 127.0.0.1, for experiments.

    If the cluster is already running, prints its address. `paceline ray down` stops it.
    """
    from paceline.launchers.ray.local_cluster import start_cluster

    cluster, is_new = start_cluster(state, nodes=nodes, cpus=cpus_per_node, has_dashboard=dashboard)
    print_message(
        session,
        f"{pluralize(len(cluster.nodes), 'node')} {'started' if is_new else 'already running'}; logs in "
        f"{state}",
    )
    lines = [f"address    {cluster.address}", f"client     {cluster.client}"]
    lines += [f"dashboard  {cluster.dashboard}"] if cluster.dashboard else []
    lines += [f"node {n}     pid {node.pid}, {node.cpus} CPUs" for n, node in enumerate(cluster.nodes)]
    lines += [f"next       paceline train --launcher ray --address {cluster.address}"]
    emit(session, "ray.up", _cluster_json(cluster, is_new), lines)


def _cluster_json(cluster: "LocalCluster", is_new: bool) -> "Json":
    nodes: list[Json] = [{"pid": node.pid, "cpus": node.cpus} for node in cluster.nodes]
    fields: dict[str, Json] = {name: value for name, value in asdict(cluster).items() if name != "nodes"}
    return {**fields, "nodes": nodes, "is_new": is_new}


@ray.command("down")
@state_option
@common_options
def down(session: Session, state: Path) -> None:
    """Stop the cluster that `up` started, and delete its state."""
    from paceline.launchers.ray.local_cluster import stop_cluster

    ended = stop_cluster(state)
    emit(
        session,
        "ray.down",
        {"nodes": ended},
        [f"{pluralize(ended, 'node')} stopped" if ended else "no cluster was running"],
    )


for command in (submit, status, logs, stop, list_jobs):
    ray.add_command(command)
