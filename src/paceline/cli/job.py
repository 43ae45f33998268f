"""`paceline job`: what a cluster is asked for, whether manifests are sound, and why a job is stuck."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.job_explain import explain
from paceline.cli.job_render import render
from paceline.cli.job_results import results
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.plan.codec import Json


@click.group("job")
@common_options
def job(session: Session) -> None:
    """Write the manifests of a job on Kubernetes, check manifests, explain a job: all without a cluster.
    Fetch what a job wrote."""


@job.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.option(
    "--profile",
    type=click.Choice(["strict", "compat"]),
    default="strict",
    show_default=True,
    help="compat does not ask for Pod Security restricted, for limits, or for Ray's token.",
)
@common_options
def validate(session: Session, files: tuple[Path, ...], profile: str) -> None:
    """Check the manifests of jobs offline: PyTorchJob, TrainJob and its runtimes, Job, HyperPodPyTorchJob,
    RayJob, RayCluster, and what comes with them. Unknown fields, types, amounts, names, the operators' rules,
    secrets in clear text. Exit code 3 with every problem, its file, line and field."""
    from paceline.app.job import validate_file
    from paceline.kube.intent import Profile

    checked = [validate_file(session.folder / file, Profile(profile)) for file in files]
    problems = [problem for one in checked for problem in one.problems]
    if problems:
        raise ConfigError(problems)
    objects = [name for one in checked for name in one.objects]
    others = [name for one in checked for name in one.others]
    for name in others:
        say(session, f"not checked, but for secrets: {name}")
    answer: dict[str, Json] = {"objects": list(objects), "not_checked": list(others)}
    emit(session, "job.validate", answer, [f"ok  {name}" for name in objects])


job.add_command(render)
job.add_command(explain)
job.add_command(results)
