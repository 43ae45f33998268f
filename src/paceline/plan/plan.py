"""The plan of a run: everything decided, nothing left to a default.

A plan is frozen, JSON, and hashed: two runs with the same plan hash and the
same recorded schedule end with the same bits. See docs/map.md.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.config.train_config import ExportTarget
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.fault_rules import ByzantineRule, StragglerRule
from paceline.sync.schedule import RateSchedule
from paceline.sync.topology import Topology

PLAN_SCHEMA = "paceline.plan/1"
Option = bool | int | float | str


class Dtype(StrEnum):
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class Launcher(StrEnum):
    LOCAL = "local"  # processes on this machine
    VIRTUAL = "virtual"  # all workers take turns in one process, in virtual time
    TORCHRUN = "torchrun"  # torchrun started the processes, on any number of hosts
    RAY = "ray"  # actors of Ray, on any number of nodes
    AGENTS = "agents"  # processes that `paceline agent` starts, on any number of hosts


class Placement(StrEnum):
    """How Ray spreads bundles of resources over nodes; the names are its own, in lower case."""

    PACK = "pack"  # on few nodes, if they fit
    SPREAD = "spread"  # on many nodes, if there are
    STRICT_PACK = "strict_pack"
    STRICT_SPREAD = "strict_spread"


class Transport(StrEnum):
    """How tensors travel. `none` for a single worker."""

    NONE = "none"
    SHM = "shm"
    GLOO = "gloo"
    NCCL = "nccl"
    TCP = "tcp"
    CUDA_IPC = "cuda-ipc"


class EventDetail(StrEnum):
    FULL = "full"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerChoice:
    """An optimizer named on the command line; it replaces the one the task would build."""

    name: str  # one of plan.catalog.OPTIMIZERS
    lr: float
    weight_decay: float = 0.0


class AsgdVariant(StrEnum):
    """Staleness handling of an asynchronous server."""

    PLAIN = "plain"
    STALENESS_AWARE = "staleness-aware"
    DC = "dc"
    RINGMASTER = "ringmaster"


class Codec(StrEnum):
    """Compression of numbers before they are sent (plan.compression defines the parameters)."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    SIGN = "sign"
    TOPK = "topk"
    DGC = "dgc"
    POWERSGD = "powersgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    codec: Codec
    amount: float | None = None  # topk, dgc: the part of the numbers that is sent; powersgd: the rank
    error_feedback: bool = True  # the error of a message is added to the next one
    warmup: int = 0  # dgc: averagings during which more is sent

    @property
    def has_state(self) -> bool:
        """Whether a message depends on those before it: by an error memory, or by random rounding."""
        return self.error_feedback or self.codec in (Codec.INT8, Codec.DGC, Codec.POWERSGD)


class OnNan(StrEnum):
    """Action when the mean of a step's gradients is not finite."""

    STOP = "stop"  # with an error, before the update
    SKIP = "skip"  # no worker makes the update of that step


class FsdpPrecision(StrEnum):
    """Compute precision of a sharded model; parameters and gradient sums stay in the model's precision."""

    NONE = "none"  # the model's own
    BF16 = "bf16"


class GossipVariant(StrEnum):
    """How a worker that talks to its neighbours only mixes and updates."""

    DPSGD = "dpsgd"  # mixes what its neighbours had, then updates (Lian 2017)
    DIFFUSION = "diffusion"  # updates, then mixes (adapt then combine, Chen and Sayed 2012)
    PUSH_SUM = "push-sum"  # updates, then sends along directed edges (stochastic gradient push, Assran 2019)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """Options of all modes; a mode reads only its own (listed in plan.catalog)."""

    staleness: int | None = None  # ssp: the bound; None means no bound. dssp: the lower bound
    staleness_range: int = 4  # dssp: how far above it the bound may move
    asgd: AsgdVariant = AsgdVariant.PLAIN
    dc_lambda: float = 0.0  # asgd dc: how strongly the delay is compensated
    max_staleness: int | None = None  # asgd ringmaster: this stale or staler is discarded; None: nothing is
    backup_workers: int = 0  # backup: how many gradients of a step are not waited for
    aggregate: str = "mean"  # ssgd, ps: how gradients become one; one of plan.catalog.AGGREGATES, or your own
    byzantine_tolerance: int = 1  # how many bad workers a robust `aggregate` must survive
    # localsgd, fedavg, adaptive: local steps between two averagings (H); easgd: between two exchanges
    sync_every: int = 1
    elasticity: float = 0.9  # easgd: N times alpha, the part of a distance that one exchange makes up
    clients_per_round: float = 1.0  # fedavg: the part of the workers that is drawn for each round
    post_local_after: int = 0  # localsgd: steps of plain ssgd before local steps begin
    outer_lr: float = 0.7  # diloco: the outer optimizer's rate
    outer_momentum: float = 0.9  # diloco: its Nesterov momentum
    fragments: int = 1  # diloco: parts of the parameters that are synced in turn
    sync_delay: int = 0  # diloco: steps between averaging a fragment and applying it
    mixing: float = 0.0  # diloco: how much of a worker's own parameters stays
    adaptive: Allowed = Allowed.AUTO  # adaptive: what it may choose from
    average_optimizer_state: bool = False  # localsgd: average moments as well as parameters
    freeze_after: int = 1  # onebit: steps of plain Adam before its second moment is frozen
    gossip: GossipVariant = GossipVariant.DPSGD
    topology: Topology = Topology.RING  # gossip, adpsgd: who is whose neighbour
    fsdp_precision: FsdpPrecision = FsdpPrecision.NONE
    sync_batchnorm: bool = False  # ssgd, ddp: BatchNorm layers normalise over the samples of all workers
    on_nan: OnNan | None = None  # ssgd: what to do about a mean that is not finite; None: not checked


class OnSlow(StrEnum):
    """Action of an elastic run on a slow worker."""

    TOLERATE = "tolerate"  # only reported
    REBALANCE = "rebalance"  # shards are dealt out by measured speed
    REPLACE = "replace"  # it is requested to leave, and started again


class OnGiveUp(StrEnum):
    """Action of an elastic run when too few workers are left and none will be replaced."""

    FAIL = "fail"
    PAUSE = "pause"  # it waits for an operator


MAX_REPLACEMENTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """The run continues when workers are lost or join. The plan's `num_workers` then counts its shards.

    Samples, random numbers and the order of summing belong to a shard. The workers that are present
    compute all shards, so the result does not depend on which worker computes which.
    """

    workers: int  # processes that the run begins with
    min_workers: int
    max_workers: int
    restarts: int = MAX_REPLACEMENTS  # lost workers that are replaced within an hour, and as many servers
    longest_wait_s: float = 30.0  # longest delay before a repeatedly lost worker is replaced
    on_slow: OnSlow = OnSlow.TOLERATE
    on_give_up: OnGiveUp = OnGiveUp.FAIL
    servers: int = 1  # plans of earlier versions may hold more: parameters in several parts

    def __post_init__(self) -> None:
        assert self.servers == 1, f"servers is {self.servers}, but this version has no servers in parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRay:
    """Address and options of Ray."""

    address: str  # local, auto, HOST:PORT or ray://HOST:PORT
    placement: Placement | None = None  # None: pack, or spread for a mode with a server on several nodes
    restarts: int = 0  # how often all workers are started again after a loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """When the model is evaluated during training, and the rule of early stopping."""

    every: int | None  # steps; None: at the end of every epoch
    patience: int | None = None  # evaluations in a row that are no better, then all stop; None: no early stop
    metric: str | None = None  # metric of the patience rule; None: valid_loss, or else test_loss
    lower_is_better: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    run: str
    task: str  # a built-in name or `module:Class`
    mode: str  # a built-in name or `module:Class`
    num_workers: int
    steps: int  # gradients that each worker computes
    batch_sizes: tuple[int, ...]  # samples per gradient, one entry per worker
    epochs: float | None = None  # source of `steps`; None: steps were given
    num_samples: int | None = None  # training samples of the task; None: not needed
    evaluation: Evaluation | None = None  # None: at the end only
    launcher: Launcher = Launcher.LOCAL
    ray: OnRay | None = None  # launcher ray
    transport: Transport = Transport.SHM
    seed: int = 0
    shuffle_block: int | None = None  # samples that stay near each other; None: an epoch mixes all with all
    dtype: Dtype = Dtype.FLOAT32
    device: Device = Device.CPU
    task_options: dict[str, Option] = field(default_factory=dict)
    optimizer: OptimizerChoice | None = None  # None: the task builds its own
    lr: float | None = None  # overrides the rate of the task's own optimizer
    # Asynchronous updates are summed: 1/N makes equal samples move equally far. N: scaled for a larger batch.
    lr_scale: float = 1.0
    lr_schedule: RateSchedule | None = None  # None: the rate stays as it is
    clip_norm: float | None = None
    grad_accumulation: int = 1  # parts of a worker's batch, computed one after the other for one update
    compress: Compression | None = None  # None: no compression
    strategy: StrategyOptions = field(default_factory=StrategyOptions)
    stragglers: tuple[StragglerRule, ...] = ()
    vmap: bool = False  # launcher virtual: gradients of all workers by one vmapped pass
    byzantine: tuple[ByzantineRule, ...] = ()  # who sends wrong gradients
    pace_s: float = 0.0  # a step's forward and backward take at least this long
    threads_per_worker: int = 1
    timeout_s: float = 60.0  # how long anyone waits for a peer
    elastic: Elastic | None = None
    checkpoint_every: int = 0  # steps between checkpoints; 0 writes only the final one
    keep_checkpoints: int = 3  # complete ones that stay
    checkpoint_store: str | None = None  # s3://bucket/prefix, where copies of them go
    events: EventDetail = EventDetail.FULL
    exports: tuple[ExportTarget, ...] = ()  # further destinations of the event log
    gradient_norm_every: int = 10  # steps between measurements of a worker's gradient norm; 0: never
    alerts: str | None = None  # a file of rules; None: the default ones, without notifiers
    schema: str = PLAN_SCHEMA

    @property
    def has_momentum_in_codec(self) -> bool:
        """DGC accumulates and clips before it sends, so the optimizer must do neither."""
        return self.compress is not None and self.compress.codec is Codec.DGC

    @property
    def processes(self) -> int:
        """Workers that the run begins with; `num_workers` of an elastic run are its shards."""
        return self.num_workers if self.elastic is None else self.elastic.workers

    @property
    def global_batch(self) -> int:
        return sum(self.batch_sizes)

    @property
    def gradients_per_update(self) -> int:
        """How many gradients make one synchronous update: one of each worker, but for backup workers."""
        return max(1, self.processes - self.strategy.backup_workers)

    @property
    def total_gradients(self) -> int:
        return self.steps * self.num_workers

    @property
    def total_samples(self) -> int:
        return self.steps * self.global_batch
