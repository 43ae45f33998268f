"""Which flags has `paceline job render` for jobs that torchrun starts? One for each field of TorchWishes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.kube.torch_asked import TorchWishes

_SOME = {"multiple": True}
# Flag, what click must know of it. In the order of --help.
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (  # Any: each option of click's has its own types
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
    ("--volume", {**_SOME, "metavar": "CLAIM:PATH[:ro]", "help": "A claim to mount. Repeatable."}),
    (
        "--create-volume",
        {**_SOME, "metavar": "CLAIM=SIZE[/CLASS]", "help": "Also the claim itself. Repeatable."},
    ),
    ("--config-map", {"is_flag": True, "help": "The file of --config goes with the job, as a ConfigMap."}),
    ("--env", {**_SOME, "metavar": "NAME=VALUE", "help": "A variable, never a secret one. Repeatable."}),
    ("--torch-debug", {"is_flag": True, "help": "Variables that make torch and NCCL talkative."}),
    ("--hf-secret", {"metavar": "SECRET[/KEY]", "help": "HF_TOKEN, by reference. [default key: token]"}),
    ("--instance-type", {"metavar": "TYPE", "help": "Only nodes of this type."}),
    ("--node-selector", {**_SOME, "metavar": "KEY=VALUE", "help": "Only nodes with this label. Repeatable."}),
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
    for flag, known in reversed(_OPTIONS):
        body = click.option(flag, **known)(body)
    return body


def torch_wishes(said: dict[str, Any]) -> "TorchWishes":  # Any: from click
    """Takes its flags out of `said`."""
    from paceline.kube.torch_asked import TorchWishes

    names = [flag.removeprefix("--").replace("-", "_") for flag, _ in _OPTIONS]
    return TorchWishes(**{_FIELDS.get(name, name): said.pop(name) for name in names})
