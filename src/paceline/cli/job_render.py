"""`paceline job render`: which manifests ask a cluster for this run? Printed as YAML, and nothing is sent."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.job_torch_options import torch_options, torch_wishes
from paceline.cli.options import common_options, config_options_without
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.config.written import Written
from paceline.errors import ConfigError, PacelineError, Problem

if TYPE_CHECKING:
    from paceline.kube.torch_wishes import Travelling
    from paceline.kube.wishes import Wishes
    from paceline.plan.codec import Json

_TARGETS = ["pytorchjob", "trainjob", "job", "hyperpod", "rayjob", "raycluster"]
_MEMORY = "4Gi"
_CPUS = click.IntRange(1, 1024)


@click.command("render")
@click.option("--target", type=click.Choice(_TARGETS), required=True, help="Kind of object.")
@click.option(
    "--image", required=True, metavar="NAME:TAG", help="Image with paceline in it, and Ray for Ray."
)
@click.option("--namespace", metavar="NAME", help="[default: wherever it is applied]")
@click.option(
    "--gpus-per-worker",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="GPUs of a worker pod of Ray's; each serves one worker of the run.",
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
@torch_options
@config_options_without("launcher", "address")
@common_options
def render(session: Session, flags: Sequence[Written], target: str, **said: Any) -> None:  # Any: from click
    """Print the manifests of a run on Kubernetes.

    All settings of `train` work; those that are not default become the job's command. --name is the name of
    the objects too. With pytorchjob, trainjob, job and hyperpod, torchrun starts the workers in --nodes pods.
    """
    # Imported here, so that --help does not pay for it.
    from paceline.app.job import render_job
    from paceline.config.load import load
    from paceline.config.sources import from_sets
    from paceline.kube.notes import notes
    from paceline.kube.parts import relaxed
    from paceline.kube.render import Target

    sets, wishes = from_sets(session.common.sets), _wishes(said)
    entries = [*flags, *sets.entries]
    loaded = load(flags=entries, variables=session.variables, file=session.common.config)
    found = [*sets.problems, *loaded.problems]
    travelling = _travelling(session, entries) if wishes.torch.config_map else None
    done = render_job(loaded.config, wishes, Target(target), found, travelling)
    for line in relaxed(done.intent.profile):
        say(session, f"compat: {line}")
    for line in notes(done.intent, Target(target)):
        say(session, f"note: {line}")
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
    torch = torch_wishes(said)
    return Wishes(head=head, worker=worker, limits=Limits(**limits), ray_version=version, torch=torch, **said)


def _travelling(session: Session, entries: Sequence[Written]) -> "Travelling":
    """The file of --config as it is, and what was said beside it."""
    from paceline.config.load import load
    from paceline.kube.intent import ConfigFile
    from paceline.kube.torch_wishes import Travelling

    file = session.common.config
    if file is None:
        hint = "name a file by --config, or leave --config-map out"
        raise ConfigError(
            [Problem("config_map is said, but there is no file to put there", hint, "--config-map")]
        )
    beside = load(flags=entries, variables=session.variables).config
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise PacelineError(f"cannot read {file}: {reason}", "name a file of settings by --config") from error
    name = "config.toml" if file.suffix == ".toml" else "config.yaml"
    return Travelling(file=ConfigFile(name=name, text=text), beside=beside)
