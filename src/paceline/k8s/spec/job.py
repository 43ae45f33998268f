"""The description of a job: what a user asks for (`JobOptions`), and what runs on a cluster (`JobSpec`).

An option is defined once, here: a field with its default, and in its metadata the help and the bounds of its
flag. `cli/job_options.py` makes the flags of `job render` and `job submit` from them. A spec is the same for
every target; a target decides only how to write it down.
"""

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from typing import Any

from paceline.k8s.kinds import HYPERPOD_JOB, JOB, PYTORCH_JOB, RAY_CLUSTER, RAY_JOB, TRAIN_JOB

RAY_VERSION = "2.60.0"  # of the image that docker/ray.Dockerfile builds

PORT = 29500  # torchrun's own
# Where things are mounted in a pod.
SHM = "/dev/shm"
RESULTS = "/results"
CONFIG = "/config"
CACHE = "/cache"


class Target(StrEnum):
    PYTORCHJOB = "pytorchjob"  # training-operator 1.9
    TRAINJOB = "trainjob"  # Kubeflow Trainer 2.3
    JOB = "job"  # Kubernetes alone
    HYPERPOD = "hyperpod"  # HyperPod's training operator
    RAYJOB = "rayjob"  # one run on a cluster of its own
    RAYCLUSTER = "raycluster"  # a cluster that stays

    @property
    def resource(self) -> str:
        """As `kubectl` and rights name it, such as `jobs.batch`."""
        return _KINDS[self].resource


_KINDS = {
    Target.PYTORCHJOB: PYTORCH_JOB,
    Target.TRAINJOB: TRAIN_JOB,
    Target.JOB: JOB,
    Target.HYPERPOD: HYPERPOD_JOB,
    Target.RAYJOB: RAY_JOB,
    Target.RAYCLUSTER: RAY_CLUSTER,
}
ON_RAY = (Target.RAYJOB, Target.RAYCLUSTER)


class Profile(StrEnum):
    STRICT = "strict"  # pods pass Pod Security "restricted"
    COMPAT = "compat"  # for images that insist on running as root


class Rendezvous(StrEnum):
    STATIC = "static"  # node 0 is where all meet, and rank 0 is there: logs are where one looks for them
    C10D = "c10d"  # nodes may come later, or come back; rank 0 may be anywhere


TRAINERS = ("2.3",)  # Kubeflow Trainer


@dataclass(frozen=True, slots=True)
class Flag:
    """The command line's side of an option."""

    help: str  # {} in it is the pod whose size it is
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    between: tuple[int, int | None] | None = None  # of whole numbers: the smallest, and the largest or None
    name: str | None = None  # where it is not that of the field
    shows_default: bool = False
    may_be_unsaid: bool = False  # the command gets None, so that it can see that the flag was not given


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What one pod asks for, and gets no more of."""

    cpus: int = field(
        default=2, metadata={"flag": Flag("CPUs of {}.", between=(1, 1024), shows_default=True)}
    )
    memory: str = field(default="4Gi", metadata={"flag": Flag("Memory of {}.", shows_default=True)})
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A job that is stuck costs a known maximum."""

    # A whole new attempt each.
    retries: int = field(
        default=0, metadata={"flag": Flag("New attempts.", between=(0, 100), shows_default=True)}
    )
    pending_s: int = field(
        default=900,
        metadata={
            "flag": Flag("Most seconds until it runs. [default: 900]", between=(1, None), may_be_unsaid=True)
        },
    )
    running_s: int = field(
        default=86_400, metadata={"flag": Flag("Most seconds in all.", between=(1, None), shows_default=True)}
    )
    kept_s: int = field(
        default=600,
        metadata={
            "flag": Flag(
                "Seconds that a job's pods stay after its end, for logs and results.",
                between=(0, None),
                shows_default=True,
            )
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunOptions:
    """The options of jobs whose processes torchrun starts, in the order of --help."""

    nodes: int | None = field(
        default=None, metadata={"flag": Flag("Pods of the job. [default: 1]", "N", between=(1, 1000))}
    )
    gpus_per_node: int = field(
        default=0, metadata={"flag": Flag("GPUs of a pod.", between=(0, 64), shows_default=True)}
    )
    gpu_claims: bool = field(
        default=False,
        metadata={"flag": Flag("GPUs by a ResourceClaim (DRA), for nodes without a device plugin.")},
    )
    procs_per_node: int | None = field(
        default=None,
        metadata={"flag": Flag("Workers in a pod. [default: one per GPU, or 1]", "N", between=(1, 256))},
    )
    torchrun: str | None = field(
        default=None,
        metadata={"flag": Flag("Where it is in the image. [default: /opt/conda/bin/torchrun]", "PATH")},
    )
    rdzv: str = field(
        default=Rendezvous.STATIC,
        metadata={
            "flag": Flag(
                "How nodes meet: c10d waits for those that come back.",
                choices=tuple(Rendezvous),
                shows_default=True,
            )
        },
    )
    elastic_nodes: str | None = field(
        default=None,
        metadata={"flag": Flag("c10d, begun with as many as come. [default: --nodes]", "MIN:MAX")},
    )
    efa: int = field(
        default=0, metadata={"flag": Flag("EFA devices of a pod. [default: none]", between=(0, 64))}
    )
    shm: str = field(
        default="1Gi", metadata={"flag": Flag("Size of /dev/shm, part of the memory.", shows_default=True)}
    )
    checkpoint_volume: str | None = field(
        default=None,
        metadata={
            "flag": Flag("Where runs are kept, and gone on with. [default: in the pod]", "CLAIM[:PATH]")
        },
    )
    volumes: Sequence[str] = field(
        default=(), metadata={"flag": Flag("A claim to mount. Repeatable.", "CLAIM:PATH[:ro]", name="volume")}
    )
    create_volumes: Sequence[str] = field(
        default=(),
        metadata={
            "flag": Flag("Also the claim itself. Repeatable.", "CLAIM=SIZE[/CLASS]", name="create_volume")
        },
    )
    config_map: bool = field(
        default=False, metadata={"flag": Flag("The file of --config goes with the job, as a ConfigMap.")}
    )
    env: Sequence[str] = field(
        default=(), metadata={"flag": Flag("A variable, never a secret one. Repeatable.", "NAME=VALUE")}
    )
    torch_debug: bool = field(
        default=False, metadata={"flag": Flag("Variables that make torch and NCCL talkative.")}
    )
    hf_secret: str | None = field(
        default=None, metadata={"flag": Flag("HF_TOKEN, by reference. [default key: token]", "SECRET[/KEY]")}
    )
    instance_type: str | None = field(
        default=None, metadata={"flag": Flag("Only nodes of this type.", "TYPE")}
    )
    node_selector: Sequence[str] = field(
        default=(), metadata={"flag": Flag("Only nodes with this label. Repeatable.", "KEY=VALUE")}
    )
    queue: str | None = field(default=None, metadata={"flag": Flag("Queue of Kueue.", "NAME")})
    priority: str | None = field(default=None, metadata={"flag": Flag("Priority class of Kueue.", "NAME")})
    service_account: str | None = field(
        default=None, metadata={"flag": Flag("Account of the pods, which get no token of it.", "NAME")}
    )
    rbac: bool = field(
        default=False,
        metadata={"flag": Flag("Also an account that may follow jobs of the namespace, no more.")},
    )
    network_policy: bool = field(
        default=False, metadata={"flag": Flag("Also a policy: only the job's own pods reach each other.")}
    )
    trainer: str = field(
        default=TRAINERS[-1],
        metadata={
            "flag": Flag(
                "Kubeflow Trainer of the cluster, for trainjob.", choices=TRAINERS, shows_default=True
            )
        },
    )
    runtime: str | None = field(
        default=None,
        metadata={"flag": Flag("Runtime for trainjob. [default: comes with the job]", "[KIND/]NAME")},
    )
    spares: int = field(
        default=0, metadata={"flag": Flag("Nodes that HyperPod keeps ready.", between=(0, 64))}
    )
    allow_restart_from_zero: bool = field(
        default=False, metadata={"flag": Flag("--retries also without a checkpoint to go on from.")}
    )

    def said(self) -> list[str]:
        """The flags whose value is not the default."""
        given = [one for one in fields(self) if getattr(self, one.name) != one.default]
        return [f"--{flag_name(one).replace('_', '-')}" for one in given]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The flags of `job render` that are not settings of the run, in the order of --help."""

    image: str = field(metadata={"flag": Flag("Image with paceline in it, and Ray for Ray.", "NAME:TAG")})
    namespace: str | None = None
    gpus_per_worker: int = field(
        default=0,
        metadata={
            "flag": Flag(
                "GPUs of a worker pod of Ray's; each serves one worker of the run.",
                between=(0, 64),
                shows_default=True,
            )
        },
    )
    autoscale: str | None = field(
        default=None,
        metadata={"flag": Flag("Ray changes the number of worker pods. [default: fixed]", "MIN:MAX")},
    )
    resizable: str | None = field(
        default=None,
        metadata={"flag": Flag("You may change the number of worker pods. [default: fixed]", "MIN:MAX")},
    )
    node_port: bool = field(
        default=False, metadata={"flag": Flag("Also a Service: dashboard at port 30265, client at 30001.")}
    )
    profile: str = field(
        default=Profile.STRICT,
        metadata={
            "flag": Flag(
                "strict passes Pod Security restricted; compat is for images that need root.",
                choices=tuple(Profile),
                shows_default=True,
            )
        },
    )
    worker: Size = field(default_factory=Size, metadata={"of": "a worker pod"})
    head: Size = field(default_factory=Size, metadata={"of": "the head pod"})
    secret_env: Sequence[str] = field(
        default=(),
        metadata={
            "flag": Flag(
                "A variable whose value stays in a Secret of the cluster. Repeatable.", "VARIABLE=SECRET/KEY"
            )
        },
    )
    pull_secret: str | None = field(
        default=None, metadata={"flag": Flag("Secret that opens the image's registry.", "NAME")}
    )
    limits: Limits = field(default_factory=Limits)
    ray_version: str = field(
        default=RAY_VERSION,
        metadata={
            "flag": Flag("Ray in the image. [default: that of our Dockerfile]", "X.Y.Z", may_be_unsaid=True)
        },
    )
    torch: TorchrunOptions = field(default_factory=TorchrunOptions)


def flag_name(option: Field[Any]) -> str:  # Any: options have many types
    """As click knows it: `volume` for the option `volumes`."""
    flag: Flag = option.metadata["flag"]
    return flag.name or option.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """How many worker pods: as many as wanted now, and the bounds within which that may change."""

    wanted: int
    least: int
    most: int
    is_automatic: bool = False  # Ray's autoscaler changes it; else only somebody's hand


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """An environment variable whose value stays in a Secret of the cluster."""

    name: str
    secret: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A claim of the cluster, mounted into every pod."""

    claim: str
    path: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that does not exist yet."""

    name: str
    size: str
    storage_class: str | None = None  # None: the cluster's own default
    modes: tuple[str, ...] = ("ReadWriteOnce",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file of settings that travels with the job."""

    name: str  # config.yaml, config.toml
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunSpec:
    """Of jobs whose processes torchrun starts: one pod for each node."""

    options: TorchrunOptions  # as the user gave them; what was read or decided from them stands below
    procs: int  # on each node
    program: str  # torchrun, or what stands for it
    rendezvous: Rendezvous = Rendezvous.STATIC
    results: str  # the folder that holds the run's
    volumes: tuple[Volume, ...] = ()
    claims: tuple[Claim, ...] = ()
    config: ConfigFile | None = None
    variables: tuple[tuple[str, str], ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()  # of nodes that will do
    service_account: str | None = None
    has_cache: bool = False  # a place for what is downloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    name: str
    image: str
    pods: Pods
    command: tuple[str, ...] = ()  # what the job runs
    namespace: str | None = None  # None: wherever it is applied
    head: Size = field(default_factory=Size)
    worker: Size = field(default_factory=Size)
    profile: Profile = Profile.STRICT
    secrets: tuple[SecretVariable, ...] = ()
    pull_secret: str | None = None  # opens the registry of the image
    has_node_port: bool = False
    limits: Limits = field(default_factory=Limits)
    ray_version: str = RAY_VERSION
    volumes: tuple[Volume, ...] = ()  # of Ray's pods; those of torchrun's are in `torch`
    claims: tuple[Claim, ...] = ()
    torch: TorchrunSpec | None = None  # None: Ray starts the processes
