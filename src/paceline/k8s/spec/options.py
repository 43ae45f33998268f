"""Options of `job render` that are the same for every kind of object, and the metadata of their flags.

An option is a field; its metadata holds the `Flag` of the command line, from which `cli/job_options.py` makes
the flag itself. The options of torchrun's nodes and of Ray's pods are in `job.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Flag:
    """The command line's side of an option."""

    help: str  # {} in it is the pod whose size it is
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    between: tuple[int, int | None] | None = None  # of whole numbers: the smallest, and the largest or None
    name: str | None = None  # if it differs from the field's name
    also: tuple[str, ...] = ()  # further names, such as those of torchrun
    shows_default: bool = False
    may_be_unsaid: bool = False  # the command gets None if the flag was not given
    is_range: bool = False  # a number, or MIN:MAX
    may_be_none: bool = False  # a number, or the word none


def flag_name(option: Field[Any]) -> str:  # Any: options have many types
    """The name of its click parameter: `volume` for the option `volumes`."""
    flag: Flag = option.metadata["flag"]
    return flag.name or option.name


def explicit_flags(options: Any) -> Iterator[str]:  # Any: a dataclass of options
    """The flags whose value is not the default."""
    for option in fields(options):
        if "flag" in option.metadata and getattr(options, option.name) != option.default:
            yield f"--{flag_name(option).replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousOptions:
    """How the nodes of a torchrun job meet. Unset: the kind of object decides."""

    rdzv_id: str | None = field(
        default=None, metadata={"flag": Flag("torchrun's --rdzv_id. [default: the job's name]", "ID")}
    )
    rdzv_endpoint: str | None = field(
        default=None,
        metadata={"flag": Flag("torchrun's --rdzv_endpoint (c10d). [default: node 0]", "HOST[:PORT]")},
    )
    master_addr: str | None = field(
        default=None, metadata={"flag": Flag("torchrun's --master_addr (static). [default: node 0]", "HOST")}
    )
    master_port: int | None = field(
        default=None,
        metadata={
            "flag": Flag(
                "torchrun's --master_port (static). [default: the operator's, or 29500]",
                "PORT",
                between=(1, 65_535),
            )
        },
    )
    max_restarts: int | None = field(
        default=None,
        metadata={
            "flag": Flag(
                "torchrun's --max_restarts, of the processes inside the pods. [default: --retries with c10d, "
                "or 0]",
                "N",
                between=(0, 1000),
            )
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """Fields of the job's pods."""

    tolerations: Sequence[str] = field(
        default=(),
        metadata={
            "flag": Flag(
                "Toleration of the pods, as in kubectl taint. Repeatable.",
                "KEY[=VALUE][:EFFECT]",
                name="toleration",
            )
        },
    )
    labels: Sequence[str] = field(
        default=(),
        metadata={"flag": Flag("Label of the job and its pods. Repeatable.", "KEY=VALUE", name="label")},
    )
    annotations: Sequence[str] = field(
        default=(),
        metadata={
            "flag": Flag("Annotation of the job and its pods. Repeatable.", "KEY=VALUE", name="annotation")
        },
    )
    env_from: Sequence[str] = field(
        default=(),
        metadata={
            "flag": Flag(
                "All keys of a Secret or ConfigMap as environment variables. Repeatable.",
                "secret/NAME|configmap/NAME",
            )
        },
    )
    ephemeral_storage: str | None = field(
        default=None,
        metadata={"flag": Flag("Ephemeral storage request and limit of a pod. [default: none]", "SIZE")},
    )
    priority_class: str | None = field(
        default=None, metadata={"flag": Flag("PriorityClass of the pods (Kueue's is --priority).", "NAME")}
    )
    runtime_class: str | None = field(
        default=None, metadata={"flag": Flag("RuntimeClass of the worker pods.", "NAME")}
    )
    scheduler: str | None = field(
        default=None, metadata={"flag": Flag("Scheduler of the pods. [default: the cluster's]", "NAME")}
    )
    host_network: bool = field(
        default=False,
        metadata={"flag": Flag("Use the network of the nodes; needs --profile compat.")},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pods tolerate."""

    key: str
    value: str | None = None  # None: any
    effect: str | None = None  # None: each


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFields:
    """What the user sets for all pods of a job, whatever its kind."""

    tolerations: tuple[Toleration, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    env_from: tuple[tuple[str, str], ...] = ()  # field of the source, such as secretRef, and its name
    ephemeral_storage: str | None = None
    priority_class: str | None = None
    runtime_class: str | None = None
    scheduler: str | None = None
    host_network: bool = False
    node_labels: tuple[tuple[str, str], ...] = ()  # labels of eligible nodes
    instance_type: str | None = None  # of the nodes of workers
    variables: tuple[tuple[str, str], ...] = ()
    queue: str | None = None  # of Kueue
    queue_priority: str | None = None
