"""`paceline job status|logs|attach|stop|list`: jobs that are in a cluster, from any machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.job_follow import follow_job, kept_lines
from paceline.cli.job_follow_options import follow_options
from paceline.cli.job_place import place_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ExitCode

if TYPE_CHECKING:
    from paceline.app.cluster_reach import Place
    from paceline.plan.codec import Json


@click.command("status")
@click.argument("name")
@common_options
@place_options
def status(session: Session, place: "Place", *, name: str) -> None:
    """How far a job is, its pods, who starts it again if it fails, and what is wrong, if anything is."""
    from paceline.app.cluster_reach import reached
    from paceline.app.job_live import job_status

    with reached(place) as cluster:
        now = job_status(cluster, name)
    lines = [f"{now.kind}/{now.name} in {now.namespace}: {now.phase.value}, attempt {now.attempt}"]
    lines.append(f"started again by: {now.in_charge}")
    if now.checkpoint is not None:
        lines.append(f"last checkpoint that the logs mention: step {now.checkpoint}")
    for pod in now.pods:
        rank = "" if pod.rank is None else f"rank {pod.rank}  "
        lines.append(f"  {rank}{pod.name}  {pod.phase}  {pod.node or 'no node'}")
    finding = now.explained.finding
    lines += [] if finding is None else [*finding.lines(), f"decision: {now.explained.verdict.says}"]
    pods: list[Json] = [dict(asdict(pod)) for pod in now.pods]
    answer: dict[str, Json] = {"name": now.name, "kind": now.kind, "namespace": now.namespace}
    answer |= {"phase": now.phase.value, "attempt": now.attempt, "in_charge": now.in_charge, "pods": pods}
    answer |= {"checkpoint": now.checkpoint, "finding": None if finding is None else finding.to_json()}
    emit(session, "job.status", answer, lines)


@click.command("logs")
@click.argument("name")
@click.option("--rank", type=click.IntRange(0), help="Only of this node's rank.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last lines of each pod.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Keep the lines in a file too."
)
@common_options
@place_options
def logs(
    session: Session, place: "Place", *, name: str, rank: int | None, tail: int | None, output: Path | None
) -> None:
    """What the pods of a job have written so far, pod by pod. `job attach` shows what comes."""
    from paceline.app.cluster_reach import reached
    from paceline.app.job_live import job_logs

    rows: list[Json] = []
    is_empty = True
    with reached(place) as cluster, kept_lines(session, output) as keep:
        for one in job_logs(cluster, name, rank, tail):
            is_empty = False
            text = f"{one.prefix} {one.text}"
            keep(text)
            if session.common.json:
                rows.append({"pod": one.pod, "prefix": one.prefix, "text": one.text})
            else:
                print(text)  # as it comes: logs may be larger than memory, and be cut
    if is_empty:
        say(session, f"nothing is written yet: paceline job status {name} -n {cluster.namespace}")
    emit(session, "job.logs", {"lines": rows}, [])


@click.command("attach")
@click.argument("name")
@follow_options(0.0)
@common_options
@place_options
def attach(session: Session, place: "Place", *, name: str, for_s: float, output: Path | None) -> ExitCode:
    """Follow a job from wherever you are: all its lines so far, and those to come.

    If nobody watches it, you do: it is started again after failures of the cluster, as `job submit` was told.
    """
    from paceline.app.cluster_reach import reached

    with reached(place) as cluster:
        return follow_job(session, cluster, place, name, for_s=for_s, output=output, command="job.attach")


@click.command("stop")
@click.argument("name")
@common_options
@place_options
def stop(session: Session, place: "Place", *, name: str) -> None:
    """Remove a job and what was made with it. Volumes stay, with checkpoints and results."""
    from paceline.app.cluster_reach import reached
    from paceline.app.job_live import stop_job

    with reached(place) as cluster:
        gone = stop_job(cluster, name)
    emit(session, "job.stop", {"removed": list(gone)}, [f"removed  {one}" for one in gone])


@click.command("list")
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Of the whole cluster.")
@common_options
@place_options
def list_jobs(session: Session, place: "Place", *, everywhere: bool) -> None:
    """The jobs that `job submit` has sent, from whichever machine."""
    from paceline.app.cluster_reach import reached
    from paceline.app.job_live import list_jobs as listed

    with reached(place) as cluster:
        rows = listed(cluster, everywhere=everywhere)
        where = "the cluster" if everywhere else f"namespace {cluster.namespace}"
    if not rows:
        say(session, f"no job of ours is in {where}")
    lines = [
        f"{row['name']}  {row['namespace']}  {row['kind']}  {row['phase']}  attempt {row['attempt']}"
        for row in rows
    ]
    answer: list[Json] = [dict(row) for row in rows]
    emit(session, "job.list", {"jobs": answer}, lines)
