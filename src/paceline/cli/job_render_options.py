"""Which flags say what a run on Kubernetes shall look like? The same for `job render` and `job submit`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.job_torch_options import torch_options, torch_wishes
from paceline.cli.options import config_options_without

if TYPE_CHECKING:
    from paceline.kube.wishes import Wishes

_TARGETS = ["pytorchjob", "trainjob", "job", "hyperpod", "rayjob", "raycluster"]
_MEMORY = "4Gi"
_PENDING_S = 900
_CPUS = click.IntRange(1, 1024)
_LIMITS = ("retries", "running_s", "kept_s")
_OPTIONS = (
    click.option(
        "--gpus-per-worker",
        type=click.IntRange(0, 64),
        default=0,
        show_default=True,
        help="GPUs of a worker pod of Ray's; each serves one worker of the run.",
    ),
    click.option(
        "--autoscale", metavar="MIN:MAX", help="Ray changes the number of worker pods. [default: fixed]"
    ),
    click.option(
        "--resizable", metavar="MIN:MAX", help="You may change the number of worker pods. [default: fixed]"
    ),
    click.option(
        "--node-port", is_flag=True, help="Also a Service: dashboard at port 30265, client at 30001."
    ),
    click.option(
        "--profile",
        type=click.Choice(["strict", "compat"]),
        default="strict",
        show_default=True,
        help="strict passes Pod Security restricted; compat is for images that need root.",
    ),
    click.option("--worker-cpus", type=_CPUS, default=2, show_default=True, help="CPUs of a worker pod."),
    click.option("--worker-memory", default=_MEMORY, show_default=True, help="Memory of a worker pod."),
    click.option("--head-cpus", type=_CPUS, default=2, show_default=True, help="CPUs of the head pod."),
    click.option("--head-memory", default=_MEMORY, show_default=True, help="Memory of the head pod."),
    click.option(
        "--secret-env",
        multiple=True,
        metavar="VARIABLE=SECRET/KEY",
        help="A variable whose value stays in a Secret of the cluster. Repeatable.",
    ),
    click.option("--pull-secret", metavar="NAME", help="Secret that opens the image's registry."),
    click.option(
        "--retries", type=click.IntRange(0, 100), default=0, show_default=True, help="New attempts."
    ),
    click.option("--pending-s", type=click.IntRange(1), help="Most seconds until it runs. [default: 900]"),
    click.option(
        "--running-s", type=click.IntRange(1), default=86_400, show_default=True, help="Most seconds in all."
    ),
    click.option(
        "--kept-s",
        type=click.IntRange(0),
        default=600,
        show_default=True,
        help="Seconds that a job's pods stay after its end, for logs and results.",
    ),
    click.option(
        "--ray-version", metavar="X.Y.Z", help="Ray in the image. [default: that of our Dockerfile]"
    ),
)


def render_options(*, required: bool) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """`required`: there is no other way to say what shall run. `body` gets `target`, `flags` and the rest,
    which `wishes_of` reads."""
    kind = click.option("--target", type=click.Choice(_TARGETS), required=required, help="Kind of object.")
    image = click.option(
        "--image", required=required, metavar="NAME:TAG", help="Image with paceline in it, and Ray for Ray."
    )

    def with_options(body: Callable[..., object]) -> Callable[..., object]:
        body = torch_options(config_options_without("launcher", "address")(body))
        for option in reversed((kind, image, *_OPTIONS)):
            body = option(body)
        return body

    return with_options


def wishes_of(said: dict[str, Any]) -> "Wishes":  # Any: from click
    from paceline.kube.intent import RAY_VERSION, Limits, Size
    from paceline.kube.wishes import Wishes

    limits = {name: said.pop(name) for name in _LIMITS}
    limits["pending_s"] = said.pop("pending_s") or _PENDING_S
    head = Size(cpus=said.pop("head_cpus"), memory=said.pop("head_memory"))
    worker = Size(cpus=said.pop("worker_cpus"), memory=said.pop("worker_memory"))
    version = said.pop("ray_version") or RAY_VERSION
    torch = torch_wishes(said)
    return Wishes(head=head, worker=worker, limits=Limits(**limits), ray_version=version, torch=torch, **said)
