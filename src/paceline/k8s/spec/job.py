"""The description of a job: what a user asks for (`JobOptions`), and what runs on a cluster (`JobSpec`).

An option is defined once, here or in `options.py`: a field with its default, and in its metadata the help
and the bounds of its flag. `cli/job_options.py` makes the flags of `job render` and `job submit` from them. A
spec is the same for every target; a target decides only how to write it down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from paceline.k8s.kinds import HYPERPOD_JOB, JOB, PYTORCH_JOB, RAY_CLUSTER, RAY_JOB, TRAIN_JOB
from paceline.k8s.spec.options import SECONDS_PER_DAY, Flag, PodFields, PodOptions, RendezvousOptions

RAY_VERSION = "2.60.0"  # of the image that docker/ray.Dockerfile builds

PORT = 29500  # torchrun's own
COORDINATOR_PORT = 7400
NAMESPACE_VARIABLE = "POD_NAMESPACE"
# Mount paths in a pod.
SHM = "/dev/shm"
RESULTS = "/results"
CONFIG = "/config"
CACHE = "/cache"
METRICS = "/metrics"  # the folder of the token


class Target(StrEnum):
    PYTORCHJOB = "pytorchjob"  # training-operator 1.9
    TRAINJOB = "trainjob"  # Kubeflow Trainer 2.3
    JOB = "job"  # Kubernetes alone
    HYPERPOD = "hyperpod"  # HyperPod's training operator
    RAYJOB = "rayjob"  # one run on its own cluster
    RAYCLUSTER = "raycluster"  # a cluster that stays

    @property
    def resource(self) -> str:
        """Resource name as in `kubectl` and RBAC, such as `jobs.batch`."""
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


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Fewest and most nodes of an elastic job."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"


class Profile(StrEnum):
    STRICT = "strict"  # pods pass Pod Security "restricted"
    COMPAT = "compat"  # for images that must run as root


class Rendezvous(StrEnum):
    STATIC = "static"  # node 0 hosts the rendezvous and rank 0, so its log is the main one
    C10D = "c10d"  # nodes may join later, or rejoin; rank 0 may be on any node


TRAINERS = ("2.3",)  # Kubeflow Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Resource requests of one pod, which are also its limits."""

    cpus: int = field(
        default=2, metadata={"flag": Flag("CPU request of {}.", between=(1, 1024), shows_default=True)}
    )
    memory: str = field(
        default="4Gi", metadata={"flag": Flag("Memory request and limit of {}.", shows_default=True)}
    )
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A job that is stuck costs a known maximum."""

    # A whole new attempt each.
    retries: int = field(
        default=0,
        metadata={"flag": Flag("Maximum number of restarts.", between=(0, 100), shows_default=True)},
    )
    pending_s: int = field(
        default=900,
        metadata={
            "flag": Flag(
                "Maximum seconds until the job runs. [default: 900]", between=(1, None), may_be_unsaid=True
            )
        },
    )
    running_s: int | None = field(  # None: the job may run forever
        default=SECONDS_PER_DAY,
        metadata={
            "flag": Flag(
                "Maximum duration of the job in seconds, or none.",
                "SECONDS|none",
                between=(1, None),
                shows_default=True,
                may_be_none=True,
            )
        },
    )
    kept_s: int = field(
        default=600,
        metadata={
            "flag": Flag(
                "Seconds to keep finished pods, for logs and results.",
                between=(0, None),
                shows_default=True,
            )
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunOptions:
    """The options of jobs whose processes torchrun starts, in the order of --help."""

    nodes: int | NodeRange | None = field(
        default=None,
        metadata={
            "flag": Flag(
                "Number of pods; with --elastic fewest and most hosts. [default: 1]",
                "N|MIN:MAX",
                between=(1, 1000),
                is_range=True,
                also=("nnodes",),
            )
        },
    )
    coordinator: str | None = field(
        default=None,
        metadata={
            "flag": Flag(
                "Coordinator of `cluster deploy` for --elastic, and its nodes. [default: 3 nodes]",
                "NAME[:NODES]",
            )
        },
    )
    gpus_per_node: int = field(
        default=0, metadata={"flag": Flag("GPUs per pod.", between=(0, 64), shows_default=True)}
    )
    gpu_claims: bool = field(
        default=False,
        metadata={
            "flag": Flag("Request GPUs with a ResourceClaim (DRA), for nodes without a device plugin.")
        },
    )
    procs_per_node: int | None = field(
        default=None,
        metadata={
            "flag": Flag(
                "Processes per pod. [default: one per GPU, or 1]",
                "N",
                between=(1, 256),
                also=("nproc_per_node",),
            )
        },
    )
    torchrun: str | None = field(
        default=None,
        metadata={"flag": Flag("Path of torchrun in the image. [default: /opt/conda/bin/torchrun]", "PATH")},
    )
    rdzv: str = field(
        default=Rendezvous.STATIC,
        metadata={
            "flag": Flag(
                "Rendezvous backend; c10d lets lost nodes rejoin.",
                choices=tuple(Rendezvous),
                shows_default=True,
                also=("rdzv_backend",),
            )
        },
    )
    elastic_nodes: str | None = field(
        default=None,
        metadata={"flag": Flag("Minimum and maximum number of nodes (c10d). [default: --nodes]", "MIN:MAX")},
    )
    efa: int = field(
        default=0, metadata={"flag": Flag("EFA devices per pod. [default: none]", between=(0, 64))}
    )
    shm: str = field(
        default="1Gi",
        metadata={"flag": Flag("Size of /dev/shm, included in the memory limit.", shows_default=True)},
    )
    checkpoint_volume: str | None = field(
        default=None,
        metadata={
            "flag": Flag(
                "Claim for run folders and checkpoints. [default: none, they stay in the pod]", "CLAIM[:PATH]"
            )
        },
    )
    volumes: Sequence[str] = field(
        default=(), metadata={"flag": Flag("Claim to mount. Repeatable.", "CLAIM:PATH[:ro]", name="volume")}
    )
    create_volumes: Sequence[str] = field(
        default=(),
        metadata={
            "flag": Flag(
                "Claim to create with the job. Repeatable.", "CLAIM=SIZE[/CLASS]", name="create_volume"
            )
        },
    )
    config_map: bool = field(default=False, metadata={"flag": Flag("ConfigMap for the file of --config.")})
    env: Sequence[str] = field(
        default=(),
        metadata={"flag": Flag("Environment variable; not for secrets. Repeatable.", "NAME=VALUE")},
    )
    torch_debug: bool = field(default=False, metadata={"flag": Flag("Enable debug logs of torch and NCCL.")})
    hf_secret: str | None = field(
        default=None, metadata={"flag": Flag("Secret with HF_TOKEN. [default key: token]", "SECRET[/KEY]")}
    )
    instance_type: str | None = field(
        default=None, metadata={"flag": Flag("Instance type of the nodes.", "TYPE")}
    )
    node_selector: Sequence[str] = field(
        default=(), metadata={"flag": Flag("Label of the nodes. Repeatable.", "KEY=VALUE")}
    )
    queue: str | None = field(default=None, metadata={"flag": Flag("Kueue LocalQueue.", "NAME")})
    priority: str | None = field(default=None, metadata={"flag": Flag("Kueue priority class.", "NAME")})
    service_account: str | None = field(
        default=None, metadata={"flag": Flag("ServiceAccount of the pods; its token is not mounted.", "NAME")}
    )
    rbac: bool = field(
        default=False,
        metadata={"flag": Flag("Also create a ServiceAccount that may only follow jobs of the namespace.")},
    )
    network_policy: bool = field(
        default=False,
        metadata={
            "flag": Flag(
                "Also create a NetworkPolicy: only the job's pods reach each other; Ray's ports are open to "
                "the namespace."
            )
        },
    )
    trainer: str = field(
        default=TRAINERS[-1],
        metadata={
            "flag": Flag(
                "Kubeflow Trainer version of the cluster (trainjob).", choices=TRAINERS, shows_default=True
            )
        },
    )
    runtime: str | None = field(
        default=None,
        metadata={
            "flag": Flag("TrainingRuntime of the TrainJob. [default: created with the job]", "[KIND/]NAME")
        },
    )
    spares: int = field(
        default=0, metadata={"flag": Flag("Number of spare nodes (hyperpod).", between=(0, 64))}
    )
    allow_restart_from_zero: bool = field(
        default=False, metadata={"flag": Flag("Allow --retries without a checkpoint to resume from.")}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The flags of `job render` that are not settings of the run, in the order of --help."""

    image: str = field(
        metadata={
            "flag": Flag("Container image: with what the job starts, and Ray for Ray jobs.", "NAME:TAG")
        }
    )
    namespace: str | None = None
    gpus_per_worker: int = field(
        default=0,
        metadata={
            "flag": Flag(
                "GPUs per Ray worker pod; each serves one worker of the run.",
                between=(0, 64),
                shows_default=True,
            )
        },
    )
    autoscale: str | None = field(
        default=None,
        metadata={
            "flag": Flag("Minimum and maximum worker pods, scaled by Ray. [default: fixed]", "MIN:MAX")
        },
    )
    resizable: str | None = field(
        default=None,
        metadata={
            "flag": Flag("Minimum and maximum worker pods, scaled by you. [default: fixed]", "MIN:MAX")
        },
    )
    node_port: bool = field(
        default=False,
        metadata={"flag": Flag("Also create a NodePort Service: dashboard at 30265, client at 30001.")},
    )
    profile: str = field(
        default=Profile.STRICT,
        metadata={
            "flag": Flag(
                "Security profile: strict passes Pod Security restricted; compat supports images that need "
                "root.",
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
                "Environment variable from a Secret of the cluster. Repeatable.", "VARIABLE=SECRET/KEY"
            )
        },
    )
    pull_secret: str | None = field(default=None, metadata={"flag": Flag("Image pull secret.", "NAME")})
    metrics_secret: str = field(
        default="paceline-metrics/token",
        metadata={
            "flag": Flag(
                "Secret with the token that requests to --metrics-port must carry.",
                "SECRET[/KEY]",
                shows_default=True,
            )
        },
    )
    pod_monitor: bool = field(
        default=False,
        metadata={"flag": Flag("Also create a PodMonitor, for the Prometheus operator.")},
    )
    limits: Limits = field(default_factory=Limits)
    ray_version: str = field(
        default=RAY_VERSION,
        metadata={
            "flag": Flag(
                "Ray version in the image. [default: that of Paceline's Dockerfile]",
                "X.Y.Z",
                may_be_unsaid=True,
            )
        },
    )
    torch: TorchrunOptions = field(default_factory=TorchrunOptions)
    rendezvous: RendezvousOptions = field(default_factory=RendezvousOptions)
    pod: PodOptions = field(default_factory=PodOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Number of worker pods now, and its bounds."""

    wanted: int
    least: int
    most: int
    is_automatic: bool = False  # Ray's autoscaler changes it; else only a person


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """An environment variable whose value stays in a Secret of the cluster."""

    name: str
    secret: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSpec:
    """A job that serves `/metrics`; each request carries the token of this Secret."""

    port: int
    secret: str
    key: str
    has_monitor: bool = False  # a PodMonitor is created with the job


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
    """A file of settings, or a script, that travels with the job."""

    name: str  # config.yaml, config.toml, train.py
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunSpec:
    """Spec of a torchrun job: one pod for each node."""

    options: TorchrunOptions  # as given by the user; values derived from them are below
    procs: int  # on each node
    program: str  # torchrun, its replacement, or the program of a raw command
    rendezvous: Rendezvous = Rendezvous.STATIC
    results: str  # the folder that holds the run's
    volumes: tuple[Volume, ...] = ()
    claims: tuple[Claim, ...] = ()
    service_account: str | None = None
    has_cache: bool = False  # a place for what is downloaded
    is_raw: bool = False  # the job's command starts its processes itself, without torchrun


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsSpec:
    """Spec of an elastic job: `pods` that each run an agent, and one more pod with the command of the run."""

    coordinator: str  # its name, which is that of its Service
    coordinator_nodes: int
    agent: tuple[str, ...]  # command of a host

    @property
    def addresses(self) -> str:
        """The kubelet fills in the namespace."""
        nodes = range(1, self.coordinator_nodes + 1)
        service = f"{self.coordinator}.$({NAMESPACE_VARIABLE}).svc"
        return ",".join(f"{self.coordinator}-{node}.{service}:{COORDINATOR_PORT}" for node in nodes)

    @property
    def secret(self) -> str:
        return clients_secret(self.coordinator)


def clients_secret(coordinator: str) -> str:
    """The Secret with the certificates of the clients of a deployed coordinator."""
    return f"{coordinator}-clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    name: str
    image: str
    pods: Pods
    command: tuple[str, ...] = ()  # command of the job
    namespace: str | None = None  # None: the namespace in which it is applied
    head: Size = field(default_factory=Size)
    worker: Size = field(default_factory=Size)
    profile: Profile = Profile.STRICT
    secrets: tuple[SecretVariable, ...] = ()
    pull_secret: str | None = None  # opens the registry of the image
    metrics: MetricsSpec | None = None  # None: no metrics are served
    has_node_port: bool = False
    has_identity: bool = False  # Ray's pods get a service account that is created with them
    has_network_policy: bool = False  # of Ray's pods
    limits: Limits = field(default_factory=Limits)
    rendezvous: RendezvousOptions = field(default_factory=RendezvousOptions)
    fields: PodFields = field(default_factory=PodFields)
    ray_version: str = RAY_VERSION
    files: tuple[ConfigFile, ...] = ()  # in a ConfigMap, mounted into every pod at CONFIG
    script_sha256: str | None = None  # of the training script among them
    volumes: tuple[Volume, ...] = ()  # of Ray's pods; those of torchrun's are in `torch`
    claims: tuple[Claim, ...] = ()
    torch: TorchrunSpec | None = None  # None: Ray starts the processes
    elastic: NodeRange | None = None  # hosts that may come and go
    agents: AgentsSpec | None = None  # None: torchrun or Ray starts the processes
