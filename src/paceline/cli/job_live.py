"""`paceline job status|logs|attach|stop|list`: jobs that are in a cluster, from any machine."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.k8s_options import k8s_target_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import CannotWriteError, ExitCode
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.client.connection import ClusterConnection, ClusterTarget
    from paceline.k8s.diagnose.findings import Finding
    from paceline.k8s.submit.follow import Follower
    from paceline.k8s.submit.log_streams import Line
    from paceline.plan.codec import Json


def follow_job(
    session: Session,
    cluster: "ClusterConnection",
    place: "ClusterTarget",
    name: str,
    *,
    for_s: float,
    output: Path | None,
    command: str,
) -> ExitCode:
    """Follow for `for_s` seconds (0: to the end), then leave it to a watcher; `output` gets the lines too."""
    from paceline.k8s.client.api import ApiError
    from paceline.k8s.submit.submission import start_watcher

    shown: list[Finding] = []
    with open_line_log(session, output) as keep:
        follower = _follower(session, cluster, name, shown, keep)
        try:
            done = follower.follow(for_s or None)
        except KeyboardInterrupt as stopped:
            raise type(stopped)(_reattach_hint(name, cluster)) from None  # for `guard`: what to do now
        except ApiError:
            print_message(session, _reattach_hint(name, cluster))
            raise
    answer: dict[str, Json] = {"name": name, "namespace": cluster.namespace, "attempt": done.attempt}
    answer["finding"] = shown[-1].to_json() if shown else None
    if done.end is not None:
        answer |= {"ended": True, "says": done.end.says, "exit_code": int(done.end.code)}
        print_message(session, done.end.says)
        emit(session, command, answer, [])
        return done.end.code
    watcher = start_watcher(place, cluster.namespace, name)
    print_message(
        session,
        f"returning after {for_s:.0f} s; process {watcher.pid} continues to watch: {watcher.log}",
    )
    print_message(session, f"follow it from any machine: paceline job attach {name} -n {cluster.namespace}")
    answer |= {"ended": False, "watcher": watcher.pid, "log": str(watcher.log)}
    emit(session, command, answer, [])
    return ExitCode.OK


def _reattach_hint(name: str, cluster: "ClusterConnection") -> str:
    attach = f"paceline job attach {name} -n {cluster.namespace}"
    return f"the job continues without a watcher that restarts it after a failure; to watch it: {attach}"


@contextmanager
def open_line_log(session: Session, output: Path | None) -> Iterator[Callable[[str], None]]:
    """Lines are appended to a file, if one is named. Raises PacelineError."""
    if output is None:
        yield lambda _line: None
        return
    path = session.folder / output
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        hint = "name a file in an existing writable folder"
        raise CannotWriteError(f"cannot write {path}: {error.strerror}", hint) from error
    with file:
        # Each line at once: a killed command leaves what was seen.
        yield lambda line: print(line, file=file, flush=True)


def _follower(
    session: Session,
    cluster: "ClusterConnection",
    name: str,
    shown: "list[Finding]",
    keep: Callable[[str], None],
) -> "Follower":
    """`shown`: every finding is put there too."""
    from paceline.k8s.submit.follow import Follower, FollowOutput

    def line(one: "Line") -> None:
        # With --json, stdout holds the answer alone.
        stream = sys.stderr if session.common.json else sys.stdout
        text = f"{one.prefix} {one.text}"
        print(text, file=stream, flush=True)
        keep(text)

    def tell(finding: "Finding") -> None:
        shown.append(finding)
        for text in finding.lines():
            print_message(session, text)

    return Follower(
        cluster=cluster,
        name=name,
        shown=FollowOutput(line=line, say=lambda text: print_message(session, text), tell=tell),
        evidence=session.folder / ".paceline" / "jobs",
    )


def follow_options(for_s: float) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """`body` gets `for_s` and `output`."""
    duration = click.option(
        "--for",
        "for_s",
        type=click.FloatRange(0),
        default=for_s,
        show_default=True,
        metavar="SECONDS",
        help="Seconds to follow before a watcher continues in the background (0 = follow to the end).",
    )
    output = click.option(
        "--output",
        "-o",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File to save the lines to.",
    )
    return lambda body: duration(output(body))


@click.command("status")
@click.argument("name")
@common_options
@k8s_target_options
def status(session: Session, place: "ClusterTarget", *, name: str) -> None:
    """Show a job's progress, pods, watcher and problems."""
    from paceline.k8s.client.connection import open_cluster
    from paceline.k8s.submit.jobs import job_status

    with open_cluster(place) as cluster:
        now = job_status(cluster, name)
    lines = [f"{now.kind}/{now.name} in {now.namespace}: {now.phase.value}, attempt {now.attempt}"]
    lines.append(f"restarted by: {now.in_charge}")
    if now.checkpoint is not None:
        lines.append(f"last checkpoint in the logs: step {now.checkpoint}")
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
@click.option("--rank", type=click.IntRange(0), help="Rank of the node to show. [default: all]")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Number of last lines per pod.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="File to save the lines to."
)
@common_options
@k8s_target_options
def logs(
    session: Session,
    place: "ClusterTarget",
    *,
    name: str,
    rank: int | None,
    tail: int | None,
    output: Path | None,
) -> None:
    """Print the logs of a job's pods. To follow new lines, use `job attach`."""
    from paceline.k8s.client.connection import open_cluster
    from paceline.k8s.submit.jobs import job_logs

    rows: list[Json] = []
    is_empty = True
    with open_cluster(place) as cluster, open_line_log(session, output) as keep:
        for one in job_logs(cluster, name, rank, tail):
            is_empty = False
            text = f"{one.prefix} {one.text}"
            keep(text)
            if session.common.json:
                rows.append({"pod": one.pod, "prefix": one.prefix, "text": one.text})
            else:
                print(text)  # as it comes: logs may be larger than memory, and be cut
    if is_empty:
        print_message(session, f"no output yet: paceline job status {name} -n {cluster.namespace}")
    emit(session, "job.logs", {"lines": rows}, [])


@click.command("attach")
@click.argument("name")
@follow_options(0.0)
@common_options
@k8s_target_options
def attach(
    session: Session, place: "ClusterTarget", *, name: str, for_s: float, output: Path | None
) -> ExitCode:
    """Follow a job: print its log so far and new lines.

    If the job has no watcher, this command takes over: it restarts the job after infrastructure failures,
    within the limits given to `job submit`.
    """
    from paceline.k8s.client.connection import open_cluster

    with open_cluster(place) as cluster:
        return follow_job(session, cluster, place, name, for_s=for_s, output=output, command="job.attach")


@click.command("stop")
@click.argument("name")
@common_options
@k8s_target_options
def stop(session: Session, place: "ClusterTarget", *, name: str) -> None:
    """Delete a job and its objects. Volumes with checkpoints and results are kept."""
    from paceline.k8s.client.connection import open_cluster
    from paceline.k8s.submit.jobs import stop_job

    with open_cluster(place) as cluster:
        gone = stop_job(cluster, name)
    emit(session, "job.stop", {"removed": list(gone)}, [f"removed  {one}" for one in gone])


@click.command("list")
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="List jobs of all namespaces.")
@common_options
@k8s_target_options
def list_jobs(session: Session, place: "ClusterTarget", *, everywhere: bool) -> None:
    """List the jobs submitted with `job submit`, from any machine."""
    from paceline.k8s.client.connection import open_cluster
    from paceline.k8s.submit.jobs import list_jobs as listed

    with open_cluster(place) as cluster:
        rows = listed(cluster, everywhere=everywhere)
        where = "the cluster" if everywhere else f"namespace {cluster.namespace}"
    if not rows:
        print_message(session, f"no paceline job in {where}")
    lines = [
        f"{row['name']}  {row['namespace']}  {row['kind']}  {row['phase']}  attempt {row['attempt']}"
        for row in rows
    ]
    answer: list[Json] = [dict(row) for row in rows]
    emit(session, "job.list", {"jobs": answer}, lines)
