"""Which flags say what a run on Kubernetes shall look like? The same for `job render` and `job submit`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.options import config_options_without

if TYPE_CHECKING:
    from paceline.k8s.spec.options import JobOptions, TorchrunOptions


_REPEATABLE = {"multiple": True}
# Flag, what click must know of it. In the order of --help.
_TORCHRUN_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (  # Any: each option of click's has its own types
    ("--nodes", {"type": click.IntRange(1, 1000), "metavar": "N", "help": "Pods of the job. [default: 1]"}),
    (
        "--gpus-per-node",
        {"type": click.IntRange(0, 64), "default": 0, "show_default": True, "help": "GPUs of a pod."},
    ),
    (
        "--gpu-claims",
        {"is_flag": True, "help": "GPUs by a ResourceClaim (DRA), for nodes without a device plugin."},
    ),
    (
        "--procs-per-node",
        {
            "type": click.IntRange(1, 256),
            "metavar": "N",
            "help": "Workers in a pod. [default: one per GPU, or 1]",
        },
    ),
    (
        "--torchrun",
        {"metavar": "PATH", "help": "Where it is in the image. [default: /opt/conda/bin/torchrun]"},
    ),
    (
        "--rdzv",
        {
            "type": click.Choice(["static", "c10d"]),
            "default": "static",
            "show_default": True,
            "help": "How nodes meet: c10d waits for those that come back.",
        },
    ),
    (
        "--elastic-nodes",
        {"metavar": "MIN:MAX", "help": "c10d, begun with as many as come. [default: --nodes]"},
    ),
    ("--efa", {"type": click.IntRange(0, 64), "default": 0, "help": "EFA devices of a pod. [default: none]"}),
    ("--shm", {"default": "1Gi", "show_default": True, "help": "Size of /dev/shm, part of the memory."}),
    (
        "--checkpoint-volume",
        {"metavar": "CLAIM[:PATH]", "help": "Where runs are kept, and gone on with. [default: in the pod]"},
    ),
    ("--volume", {**_REPEATABLE, "metavar": "CLAIM:PATH[:ro]", "help": "A claim to mount. Repeatable."}),
    (
        "--create-volume",
        {**_REPEATABLE, "metavar": "CLAIM=SIZE[/CLASS]", "help": "Also the claim itself. Repeatable."},
    ),
    ("--config-map", {"is_flag": True, "help": "The file of --config goes with the job, as a ConfigMap."}),
    (
        "--env",
        {**_REPEATABLE, "metavar": "NAME=VALUE", "help": "A variable, never a secret one. Repeatable."},
    ),
    ("--torch-debug", {"is_flag": True, "help": "Variables that make torch and NCCL talkative."}),
    ("--hf-secret", {"metavar": "SECRET[/KEY]", "help": "HF_TOKEN, by reference. [default key: token]"}),
    ("--instance-type", {"metavar": "TYPE", "help": "Only nodes of this type."}),
    (
        "--node-selector",
        {**_REPEATABLE, "metavar": "KEY=VALUE", "help": "Only nodes with this label. Repeatable."},
    ),
    ("--queue", {"metavar": "NAME", "help": "Queue of Kueue."}),
    ("--priority", {"metavar": "NAME", "help": "Priority class of Kueue."}),
    ("--service-account", {"metavar": "NAME", "help": "Account of the pods, which get no token of it."}),
    ("--rbac", {"is_flag": True, "help": "Also an account that may follow jobs of the namespace, no more."}),
    (
        "--network-policy",
        {"is_flag": True, "help": "Also a policy: only the job's own pods reach each other."},
    ),
    (
        "--trainer",
        {
            "type": click.Choice(["2.1", "2.2", "2.3"]),
            "default": "2.3",
            "show_default": True,
            "help": "Kubeflow Trainer of the cluster, for trainjob.",
        },
    ),
    ("--runtime", {"metavar": "[KIND/]NAME", "help": "Runtime for trainjob. [default: comes with the job]"}),
    ("--spares", {"type": click.IntRange(0, 64), "default": 0, "help": "Nodes that HyperPod keeps ready."}),
    (
        "--allow-restart-from-zero",
        {"is_flag": True, "help": "--retries also without a checkpoint to go on from."},
    ),
)
_FIELDS = {"volume": "volumes", "create_volume": "create_volumes"}


def torch_options(body: Callable[..., object]) -> Callable[..., object]:
    for flag, known in reversed(_TORCHRUN_OPTIONS):
        body = click.option(flag, **known)(body)
    return body


def read_torchrun_options(said: dict[str, Any]) -> "TorchrunOptions":  # Any: from click
    """Takes its flags out of `said`."""
    from paceline.k8s.spec.options import TorchrunOptions

    names = [flag.removeprefix("--").replace("-", "_") for flag, _ in _TORCHRUN_OPTIONS]
    return TorchrunOptions(**{_FIELDS.get(name, name): said.pop(name) for name in names})


_TARGETS = ["pytorchjob", "trainjob", "job", "hyperpod", "rayjob", "raycluster"]
_MEMORY = "4Gi"
_PENDING_S = 900
_CPUS = click.IntRange(1, 1024)
_LIMITS = ("retries", "running_s", "kept_s")
_JOB_OPTIONS = (
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
        for option in reversed((kind, image, *_JOB_OPTIONS)):
            body = option(body)
        return body

    return with_options


def read_job_options(said: dict[str, Any]) -> "JobOptions":  # Any: from click
    from paceline.k8s.spec.job import RAY_VERSION, Limits, Size
    from paceline.k8s.spec.options import JobOptions

    limits = {name: said.pop(name) for name in _LIMITS}
    limits["pending_s"] = said.pop("pending_s") or _PENDING_S
    head = Size(cpus=said.pop("head_cpus"), memory=said.pop("head_memory"))
    worker = Size(cpus=said.pop("worker_cpus"), memory=said.pop("worker_memory"))
    version = said.pop("ray_version") or RAY_VERSION
    torch = read_torchrun_options(said)
    return JobOptions(
        head=head, worker=worker, limits=Limits(**limits), ray_version=version, torch=torch, **said
    )
