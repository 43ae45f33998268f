"""`paceline job submit`: send a job to a cluster if it can run there, and follow it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.job_place import place_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ExitCode

if TYPE_CHECKING:
    from paceline.app.cluster_reach import Place
    from paceline.plan.codec import Json


@click.command("submit")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE")
@click.option(
    "--profile",
    type=click.Choice(["strict", "compat"]),
    default="strict",
    show_default=True,
    help="What the manifests are held to, as `job validate` does.",
)
@click.option("--skip-fit", is_flag=True, help="Send it although no nodes have room for it.")
@click.option(
    "--infra-retries",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="New attempts of the whole job after failures of the cluster.",
)
@click.option(
    "--app-retries",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="New attempts after failures of the program.",
)
@click.option("--pending-s", type=click.FloatRange(1), help="Patience with full nodes. [default: 30 minutes]")
@click.option(
    "--for",
    "for_s",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Then the shell returns, and a watcher goes on. 0: follow to the end.",
)
@click.option("--detach", is_flag=True, help="Do not follow; start the watcher at once.")
@common_options
@place_options
def submit(
    session: Session,
    place: "Place",
    *,
    file: Path,
    profile: str,
    skip_fit: bool,
    infra_retries: int,
    app_retries: int,
    pending_s: float | None,
    for_s: float,
    detach: bool,
) -> ExitCode:
    """Send the job of FILE (- is stdin) to a cluster, and follow it with the logs of all ranks.

    First it is asked whether it can run: rights, kinds, quotas, room on nodes, and a dry run. If not, it says
    what it needs and what there is, and nothing is created. A failure is explained; one of the cluster's
    starts the whole job again from its last checkpoint. Ctrl-C ends the following, not the job.
    """
    from paceline.app.cluster_reach import reached
    from paceline.app.job_submit import read_manifests
    from paceline.app.job_submit import submit as send
    from paceline.cli.job_follow import follow_job
    from paceline.kube.diagnosis.retry import RetryPolicy
    from paceline.kube.intent import Profile
    from paceline.kube.submission.fit import table

    manifests = read_manifests(file if str(file) == "-" else session.folder / file, Profile(profile))
    policy = RetryPolicy(infra=infra_retries, app=app_retries, pending_s=pending_s)
    with reached(place) as cluster:
        sent = send(cluster, manifests, policy, fits=not skip_fit)
        for text in (*table(sent.rows), *(f"note: {note}" for note in sent.notes)):
            say(session, text)
        say(session, f"{sent.kind}/{sent.name} is sent to namespace {sent.namespace}")
        if not detach:
            return follow_job(session, cluster, place, sent.name, for_s=for_s, command="job.submit")
        return _detached(session, place, sent.namespace, sent.name)


def _detached(session: Session, place: "Place", namespace: str, name: str) -> ExitCode:
    from paceline.app.job_watcher import start_watcher

    watcher = start_watcher(place, namespace, name)
    say(session, f"process {watcher.pid} watches it: {watcher.log}")
    answer: dict[str, Json] = {"name": name, "namespace": namespace, "ended": False}
    emit(session, "job.submit", {**answer, "watcher": watcher.pid, "log": str(watcher.log)}, [])
    return ExitCode.OK
