"""`paceline job render`: which manifests ask a cluster for this run? Printed as YAML, and nothing is sent."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.options import common_options, config_options_without
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.config.written import Written

if TYPE_CHECKING:
    from paceline.kube.wishes import Wishes
    from paceline.plan.codec import Json

_MEMORY = "4Gi"
_CPUS = click.IntRange(1, 1024)


@click.command("render")
@click.option("--target", type=click.Choice(["rayjob", "raycluster"]), required=True, help="Kind of object.")
@click.option("--image", required=True, metavar="NAME:TAG", help="Image with paceline and Ray in it.")
@click.option("--namespace", metavar="NAME", help="[default: wherever it is applied]")
@click.option(
    "--gpus-per-worker",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="GPUs of a worker pod; each serves one worker of the run.",
)
@click.option(
    "--autoscale", metavar="MIN:MAX", help="Ray changes the number of worker pods. [default: fixed]"
)
@click.option(
    "--resizable", metavar="MIN:MAX", help="You may change the number of worker pods. [default: fixed]"
)
@click.option("--node-port", is_flag=True, help="Also a Service: dashboard at port 30265, client at 30001.")
@click.option(
    "--profile",
    type=click.Choice(["strict", "compat"]),
    default="strict",
    show_default=True,
    help="strict passes Pod Security restricted; compat is for images that need root.",
)
@click.option("--worker-cpus", type=_CPUS, default=2, show_default=True, help="CPUs of a worker pod.")
@click.option("--worker-memory", default=_MEMORY, show_default=True, help="Memory of a worker pod.")
@click.option("--head-cpus", type=_CPUS, default=2, show_default=True, help="CPUs of the head pod.")
@click.option("--head-memory", default=_MEMORY, show_default=True, help="Memory of the head pod.")
@click.option(
    "--secret-env",
    multiple=True,
    metavar="VARIABLE=SECRET/KEY",
    help="A variable whose value stays in a Secret of the cluster. Repeatable.",
)
@click.option("--pull-secret", metavar="NAME", help="Secret that opens the image's registry.")
@click.option("--retries", type=click.IntRange(0, 100), default=0, show_default=True, help="New attempts.")
@click.option(
    "--pending-s", type=click.IntRange(1), default=900, show_default=True, help="Most seconds until it runs."
)
@click.option(
    "--running-s", type=click.IntRange(1), default=86_400, show_default=True, help="Most seconds in all."
)
@click.option(
    "--kept-s",
    type=click.IntRange(0),
    default=600,
    show_default=True,
    help="Seconds that a job's pods stay after its end, for logs and results.",
)
@click.option("--ray-version", metavar="X.Y.Z", help="Ray in the image. [default: that of our Dockerfile]")
@config_options_without("launcher", "address")
@common_options
def render(session: Session, flags: Sequence[Written], target: str, **said: Any) -> None:  # Any: from click
    """Print the manifests of a run on Kubernetes.

    All settings of `train` work; those that are not default become the job's command. --name is the name of
    the objects too.
    """
    # Imported here, so that --help does not pay for it.
    from paceline.app.job import render_job
    from paceline.config.load import load
    from paceline.config.sources import from_sets
    from paceline.kube.parts import relaxed
    from paceline.kube.render import Target

    sets = from_sets(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    found = [*sets.problems, *loaded.problems]
    done = render_job(loaded.config, _wishes(said), Target(target), found)
    for line in relaxed(done.intent.profile):
        say(session, f"compat: {line}")
    command = " ".join(done.intent.command)
    if target == Target.RAYCLUSTER:
        say(session, f"on its head, this runs: {command}")
    answer: dict[str, Json] = {"manifests": list(done.objects), "yaml": done.text}
    answer["command"] = list(done.intent.command)
    emit(session, "job.render", answer, done.text.splitlines())


def _wishes(said: dict[str, Any]) -> "Wishes":  # Any: from click
    from paceline.kube.intent import RAY_VERSION, Limits, Size
    from paceline.kube.wishes import Wishes

    limits = {name: said.pop(name) for name in ("retries", "pending_s", "running_s", "kept_s")}
    head = Size(cpus=said.pop("head_cpus"), memory=said.pop("head_memory"))
    worker = Size(cpus=said.pop("worker_cpus"), memory=said.pop("worker_memory"))
    version = said.pop("ray_version") or RAY_VERSION
    return Wishes(head=head, worker=worker, limits=Limits(**limits), ray_version=version, **said)
