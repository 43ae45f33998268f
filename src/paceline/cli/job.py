"""`paceline job`: manifests, whether they are sound, jobs in a cluster, and why one is stuck."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.job_live import attach, list_jobs, logs, status, stop
from paceline.cli.job_submit import render, submit
from paceline.cli.k8s_options import k8s_target_options, transfer_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode, ManifestError, Problem
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.client.connection import ClusterTarget
    from paceline.k8s.diagnose.explain import Explanation
    from paceline.k8s.spec.job import Profile
    from paceline.k8s.submit.submission import DryRun
    from paceline.plan.codec import Json


@click.command("explain")
@click.argument("name", required=False)
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Recording: output of kubectl get -o json|yaml or kubectl describe, or a log; - reads stdin.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="POD.log",
    help="Log of a pod, in a file named after the pod. Repeatable.",
)
@common_options
@k8s_target_options
def explain(
    session: Session, place: "ClusterTarget", *, name: str | None, file: Path | None, logs: tuple[Path, ...]
) -> ExitCode:
    """Explain why a job is stuck or failed: NAME in a cluster, or a recording of it. Read-only.

    Record it: kubectl get pods,events,jobs,pvc,resourcequotas,nodes -n NAMESPACE -o json > FILE.json

    Add pytorchjobs, trainjobs, rayjobs or workloads to that list if the cluster has them. Logs improve the
    diagnosis: kubectl logs POD -n NAMESPACE --timestamps > POD.log (after a restart also with --previous >
    POD.previous.log). NAME selects one job of the recording. The output of kubectl describe (pod, job,
    node), a table of events and a single log are accepted too. Exit code 4 if the cause is unknown.
    """
    from paceline.k8s.diagnose.findings import FailureClass
    from paceline.k8s.diagnose.retry import Resubmit, Stop, decision_to_dict

    done = _explained(session, place, name, file, logs)
    verdict = done.verdict
    finding = done.finding
    decision: dict[str, Json] = {"action": verdict.action, "says": verdict.says}
    if isinstance(verdict, Resubmit | Stop):
        decision = decision_to_dict(verdict)
    if finding is None:
        lines = [f"{verdict.says} ({done.seen})"]
    else:
        lines = [*finding.lines(), f"decision: {verdict.says}"]
    answer: dict[str, Json] = {
        "finding": None if finding is None else finding.to_json(),
        "decision": decision,
    }
    emit(session, "job.explain", {**answer, "seen": done.seen}, lines)
    is_understood = finding is None or finding.kind is not FailureClass.UNKNOWN
    return ExitCode.OK if is_understood else ExitCode.NOT_READY


def _explained(
    session: Session, place: "ClusterTarget", name: str | None, file: Path | None, logs: tuple[Path, ...]
) -> "Explanation":
    from paceline.k8s.client.connection import open_cluster
    from paceline.k8s.diagnose.explain import explain_recording
    from paceline.k8s.diagnose.recording import KUBECTL
    from paceline.k8s.submit.jobs import explain_live

    if file is not None:
        place_of_it = file if str(file) == "-" else session.folder / file
        return explain_recording(place_of_it, [session.folder / log for log in logs], name)
    if name is None or logs:
        what = "neither a job's name nor a recording is given"
        hint = f"give NAME, or record the job with {KUBECTL}, and add --from FILE.json"
        raise ManifestError([Problem(what, hint, "--from")])
    with open_cluster(place) as cluster:
        return explain_live(cluster, name)


@click.command("results")
@click.argument("name", metavar="NAME")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Local target folder."
)
@click.option(
    "--pvc", "claim", metavar="CLAIM", help="PersistentVolumeClaim. [default: the one that the job writes to]"
)
@click.option("--path", metavar="PATH", help="Folder on the volume; . is its root. [default: the job's name]")
@transfer_options
@common_options
@k8s_target_options
def results(
    session: Session,
    place: "ClusterTarget",
    *,
    name: str,
    out: Path,
    claim: str | None,
    path: str | None,
    image: str | None,
    force: bool,
) -> None:
    """Download what a job wrote to its volume, during or after the job.

    A temporary pod sends the files in chunks with checksums. Run the command again to download only what is
    missing. A local file that differs from the remote one is replaced.
    """
    from paceline.core.humanize import short_bytes
    from paceline.k8s.transfer.fetch import FetchRequest, fetch_results
    from paceline.k8s.transfer.pod_manifest import IMAGE
    from paceline.training.progress_display import open_byte_watcher

    asked = FetchRequest(
        name=name, out=session.folder / out, claim=claim, path=path, image=image or IMAGE, force=force
    )
    with open_byte_watcher(session, "results") as on_bytes:
        done = fetch_results(asked, place, lambda text: print_message(session, text), on_bytes)
    got = done.fetched
    lines = [
        f"here       {pluralize(got.files, 'file')}, {short_bytes(got.bytes)}, checksums match, in {out}",
        f"fetched    {pluralize(got.got_files, 'file')}, {short_bytes(got.got_bytes)}; the rest was already "
        "present",
    ]
    answer: dict[str, Json] = {
        "claim": done.claim,
        "path": done.path,
        "out": str(out),
        "files": got.files,
        "bytes": got.bytes,
        "fetched_files": got.got_files,
        "fetched_bytes": got.got_bytes,
    }
    emit(session, "job.results", answer, lines)


@click.group("job")
@common_options
def job(session: Session) -> None:
    """Render, validate, submit, follow and explain Kubernetes jobs, and download their results."""


@job.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.option(
    "--profile",
    type=click.Choice(["strict", "compat"]),
    default="compat",
    show_default=True,
    help="Validation profile; strict requires Pod Security restricted, limits, Ray's token and fixed tags.",
)
@click.option("--server", is_flag=True, help="Also validate with a server-side dry run. Nothing is created.")
@common_options
@k8s_target_options
def validate(
    session: Session, place: "ClusterTarget", *, files: tuple[Path, ...], profile: str, server: bool
) -> None:
    """Validate manifests offline: PyTorchJob, TrainJob and its runtimes, Job, HyperPodPyTorchJob, RayJob,
    RayCluster and related objects. Checks fields, types, quantities, names, the operators' rules and
    secrets in clear text. Exit code 3 with the file, line and field of every problem. Probable mistakes
    that a cluster accepts are warnings, or problems with --profile strict."""
    from paceline.k8s.spec.job import Profile
    from paceline.k8s.submit.manifests import validate_file

    checked = [validate_file(session.folder / file, Profile(profile)) for file in files]
    problems = [problem for one in checked for problem in one.problems]
    if problems:
        raise ManifestError(problems)
    objects = [name for one in checked for name in one.objects]
    others = [name for one in checked for name in one.others]
    for name in others:
        print_message(session, f"only checked for secrets: {name}")
    warnings = [warning for one in checked for warning in one.warnings]
    below = sum(one.below_strict for one in checked)
    for one in warnings:
        print_message(session, f"warning: {one.where}: {one.what}; {one.hint}")
    if below:
        print_message(
            session,
            f"note: {pluralize(below, 'requirement')} of --profile strict not met; clusters accept this",
        )
    answer: dict[str, Json] = {"objects": list(objects), "not_checked": list(others)}
    answer["warnings"] = [{"where": one.where, "what": one.what, "hint": one.hint} for one in warnings]
    answer["below_strict"] = below
    if server:
        asked = _server_dry_run(session, place, files, Profile(profile))
        answer["there_already"] = list(asked.there_already)
        answer["runtime_missing"] = list(asked.runtime_missing)
    emit(session, "job.validate", answer, [f"ok  {name}" for name in objects])


def _server_dry_run(
    session: Session, place: "ClusterTarget", files: tuple[Path, ...], profile: "Profile"
) -> "DryRun":
    from paceline.k8s.client.connection import open_cluster
    from paceline.k8s.submit.submission import dry_run, read_manifests

    manifests = [one for file in files for one in read_manifests(session.folder / file, profile)]
    with open_cluster(place) as cluster:
        asked = dry_run(cluster, manifests)
    for name in asked.there_already:
        print_message(session, f"exists already, so the server did not validate it: {name}")
    for name in asked.runtime_missing:
        print_message(session, f"not validated by the server: {name}; its runtime must exist first")
    return asked


for command in (render, explain, submit, status, logs, attach, stop, results, list_jobs):
    job.add_command(command)
