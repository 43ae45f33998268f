"""`paceline job`: manifests, whether they are sound, jobs in a cluster, and why one is stuck."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.job_explain import explain
from paceline.cli.job_live import attach, list_jobs, logs, status, stop
from paceline.cli.job_place import place_options
from paceline.cli.job_render import render
from paceline.cli.job_results import results
from paceline.cli.job_submit import submit
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ManifestError

if TYPE_CHECKING:
    from paceline.app.cluster_reach import Place
    from paceline.app.job_submit import DryRun
    from paceline.kube.intent import Profile
    from paceline.plan.codec import Json


@click.group("job")
@common_options
def job(session: Session) -> None:
    """Write and check the manifests of a job on Kubernetes, send it, follow it, explain it, fetch results."""


@job.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.option(
    "--profile",
    type=click.Choice(["strict", "compat"]),
    default="compat",
    show_default=True,
    help="strict also asks for Pod Security restricted, limits, Ray's token and fixed tags, as a problem.",
)
@click.option("--server", is_flag=True, help="Then ask the cluster too, by a dry run. Nothing is created.")
@common_options
@place_options
def validate(
    session: Session, place: "Place", *, files: tuple[Path, ...], profile: str, server: bool
) -> None:
    """Check the manifests of jobs offline: PyTorchJob, TrainJob and its runtimes, Job, HyperPodPyTorchJob,
    RayJob, RayCluster, and what comes with them. Unknown fields, types, amounts, names, the operators' rules,
    secrets in clear text. Exit code 3 with every problem, its file, line and field. What a cluster accepts
    and may still be a mistake is a warning; with --profile strict it is a problem, too."""
    from paceline.app.job import validate_file
    from paceline.kube.intent import Profile

    checked = [validate_file(session.folder / file, Profile(profile)) for file in files]
    problems = [problem for one in checked for problem in one.problems]
    if problems:
        raise ManifestError(problems)
    objects = [name for one in checked for name in one.objects]
    others = [name for one in checked for name in one.others]
    for name in others:
        say(session, f"not checked, but for secrets: {name}")
    warnings = [warning for one in checked for warning in one.warnings]
    below = sum(one.below_strict for one in checked)
    for one in warnings:
        say(session, f"warning: {one.where}: {one.what}; {one.hint}")
    if below:
        say(session, f"note: {below} points of --profile strict are not met; clusters accept them")
    answer: dict[str, Json] = {"objects": list(objects), "not_checked": list(others)}
    answer["warnings"] = [{"where": one.where, "what": one.what, "hint": one.hint} for one in warnings]
    answer["below_strict"] = below
    if server:
        asked = _ask_server(session, place, files, Profile(profile))
        answer["there_already"] = list(asked.there_already)
        answer["runtime_missing"] = list(asked.runtime_missing)
    emit(session, "job.validate", answer, [f"ok  {name}" for name in objects])


def _ask_server(session: Session, place: "Place", files: tuple[Path, ...], profile: "Profile") -> "DryRun":
    from paceline.app.cluster_reach import reached
    from paceline.app.job_submit import dry_run, read_manifests

    manifests = [one for file in files for one in read_manifests(session.folder / file, profile)]
    with reached(place) as cluster:
        asked = dry_run(cluster, manifests)
    for name in asked.there_already:
        say(session, f"there already, so the server did not look at it: {name}")
    for name in asked.runtime_missing:
        say(session, f"not asked: {name}; the server takes it only once its runtime is created")
    return asked


for command in (render, explain, submit, status, logs, attach, stop, results, list_jobs):
    job.add_command(command)
