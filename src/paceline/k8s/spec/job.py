"""What paceline runs on a cluster, independent of the kind of object that describes it there.

An intent is the same for every target; a target decides only how to write it down.
"""

from dataclasses import dataclass, field
from enum import StrEnum

RAY_VERSION = "2.60.0"  # of the image that docker/ray.Dockerfile builds


class Profile(StrEnum):
    STRICT = "strict"  # pods pass Pod Security "restricted"
    COMPAT = "compat"  # for images that insist on running as root


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What one pod asks for, and gets no more of."""

    cpus: int = 2
    memory: str = "4Gi"
    gpus: int = 0


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
class Limits:
    """A job that is stuck costs a known maximum."""

    pending_s: int = 900  # until it runs
    running_s: int = 86_400  # in all
    kept_s: int = 600  # pods stay so long after the end, for their logs and results
    retries: int = 0  # a whole new attempt each


class Rendezvous(StrEnum):
    STATIC = "static"  # node 0 is where all meet, and rank 0 is there: logs are where one looks for them
    C10D = "c10d"  # nodes may come later, or come back; rank 0 may be anywhere


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

    procs: int  # on each node
    program: str  # torchrun, or what stands for it
    rendezvous: Rendezvous = Rendezvous.STATIC
    results: str  # the folder that holds the run's
    shm: str = "1Gi"  # of the pod's memory
    has_gpu_claims: bool = False  # GPUs are handed out by DRA
    efa: int = 0  # network devices of a node
    volumes: tuple[Volume, ...] = ()
    claims: tuple[Claim, ...] = ()
    config: ConfigFile | None = None
    variables: tuple[tuple[str, str], ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()  # of nodes that will do
    queue: str | None = None  # of Kueue
    priority: str | None = None  # of Kueue
    service_account: str | None = None
    has_cache: bool = False  # a place for what is downloaded
    has_debug: bool = False
    has_rbac: bool = False
    has_network_policy: bool = False
    trainer: str = "2.3"  # Kubeflow Trainer of the cluster
    runtime: str | None = None  # None: a runtime of its own comes with the job
    spares: int = 0  # nodes that HyperPod keeps ready


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
