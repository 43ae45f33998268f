"""Defaults of a plan: one small function for each choice that a config leaves open.

Pure, and total: each also answers for a config that `check` will refuse, so
that every problem can be reported at once.
"""

import re
from typing import TypedDict

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.plan.catalog import DATA_OPTIONS, MODE_ALIASES, MODEL_OPTIONS, MODES, TRANSPORTS, Channel, Mode
from paceline.plan.compression import CODECS, read_compression
from paceline.plan.plan import (
    MAX_REPLACEMENTS,
    AsgdVariant,
    Codec,
    Compression,
    Device,
    Elastic,
    FsdpPrecision,
    GossipVariant,
    Launcher,
    OnGiveUp,
    OnNan,
    OnRay,
    OnSlow,
    OptimizerChoice,
    Option,
    Placement,
    StrategyOptions,
    Transport,
)
from paceline.plan.urls import is_remote_data
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.schedule import RateSchedule, RateShape
from paceline.sync.topology import Topology

DEFAULT_TASK = "xor"
DEFAULT_MODE = "ssgd"
KEPT_CHECKPOINTS = 3
_ELASTIC_CHECKPOINT_EVERY = 100
_DEFAULT_STALENESS = 3
_DEFAULT_SYNC_EVERY = 8
_DEFAULT_DC_LAMBDA = 0.04
_VIRTUAL_PACE_S = 0.01
_ON_THE_GPU = frozenset({Transport.NCCL, Transport.CUDA_IPC})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
# Channels of elastic runs whose workers may be on several hosts, by TCP; and how they exchange on one host.
_ON_HOSTS = {Channel.COLLECTIVE: Transport.SHM, Channel.TORCH: Transport.GLOO}
_ONE_PARENT = frozenset({Transport.SHM, Transport.CUDA_IPC})  # memory that is inherited by a fork
_DGC_WARMUP_SHARE = 20  # 1 of 20 steps (Lin 2017 uses 4 of 70 to 160 epochs)
_ADAM_LIKE = frozenset({"adam", "adamw"})


class _AsgdOptions(TypedDict):
    asgd: AsgdVariant
    dc_lambda: float
    max_staleness: int | None


def task_of(config: TrainConfig) -> str:
    return DEFAULT_TASK if config.task is None else config.task


def task_options_of(config: TrainConfig) -> dict[str, Option]:
    """Options of the task, including the path of the data and the model."""
    options = dict(config.task_options or {})
    said_of_model = {option: getattr(config, key) for key, option in MODEL_OPTIONS.items()}
    options |= {option: value for option, value in said_of_model.items() if value is not None}
    if config.data is not None:
        options[data_option_of(config)] = config.data
    data = options.get(data_option_of(config))
    # Local data needs no cache, even if the user's defaults set one.
    if isinstance(data, str) and is_remote_data(data):
        cache_options = {"data_cache": config.data_cache, "data_cache_mb": config.data_cache_mb}
        options |= {name: value for name, value in cache_options.items() if value is not None}
    return options


def data_option_of(config: TrainConfig) -> str:
    return DATA_OPTIONS.get(task_of(config).lower(), "data")


def mode_name_of(config: TrainConfig) -> str:
    """The mode with its alias resolved; `module:Class` unchanged."""
    written = DEFAULT_MODE if config.mode is None else config.mode
    return written if ":" in written else MODE_ALIASES.get(written.lower(), written.lower())


def mode_of(config: TrainConfig) -> Mode | None:
    """None for the user's own `module:Class`, which is not in the catalog."""
    return MODES.get(mode_name_of(config))


def is_alone(mode: Mode | None) -> bool:
    return mode is not None and mode.channel is Channel.ALONE


def averages_unweighted(mode: Mode | None) -> bool:
    """torch's DDP gives every worker the same weight for any batch size."""
    return mode is not None and mode.channel is Channel.TORCH


def needs_shm(config: TrainConfig) -> bool:
    """Vectors that other processes may change at any moment lie in shared memory, and only there."""
    mode = mode_of(config)
    return mode is not None and mode.channel is Channel.PEERS and not is_virtual(config)


def num_workers_of(config: TrainConfig) -> int:
    """Logical ones: in an elastic run, its shards."""
    elastic = elastic_of(config)
    if elastic is not None:
        return config.shards or max(elastic.workers, config.max_workers or 0)
    return _requested_workers(config)


def processes_of(config: TrainConfig) -> int:
    """Those that the run begins with."""
    elastic = elastic_of(config)
    return num_workers_of(config) if elastic is None else elastic.workers


def _requested_workers(config: TrainConfig) -> int:
    if config.num_workers is not None:
        return config.num_workers
    return 1 if is_alone(mode_of(config)) else 2


def elastic_of(config: TrainConfig) -> Elastic | None:
    """A setting for shards, or for minimum or maximum workers, makes the run elastic."""
    spoken_of = {config.shards, config.min_workers, config.max_workers}
    if config.elastic is False or (config.elastic is None and spoken_of == {None}):
        return None
    workers = _requested_workers(config)
    most = config.max_workers or max(workers, config.shards or 0)
    return Elastic(
        workers=workers,
        min_workers=config.min_workers or 1,
        max_workers=most,
        restarts=MAX_REPLACEMENTS if config.max_replacements is None else config.max_replacements,
        on_slow=OnSlow(config.on_slow) if config.on_slow in tuple(OnSlow) else OnSlow.TOLERATE,
        on_give_up=OnGiveUp(config.on_give_up) if config.on_give_up in tuple(OnGiveUp) else OnGiveUp.FAIL,
    )


def checkpoint_every_of(config: TrainConfig) -> int:
    """A run that expects workers to die must expect that all of them die."""
    if config.checkpoint_every is not None:
        return config.checkpoint_every
    return 0 if elastic_of(config) is None and not config.restarts else _ELASTIC_CHECKPOINT_EVERY


def device_of(config: TrainConfig, facts: Facts) -> Device:
    if config.device in (Device.CPU, Device.CUDA):
        return Device(config.device)
    # Shared memory holds tensors of the CPU only: a run that names it, or needs it, uses the CPU.
    wants_cpu = config.transport == Transport.SHM or needs_shm(config) or not_on_gpu(config) != ""
    return Device.CUDA if facts.cuda_devices > 0 and not wants_cpu else Device.CPU


def not_on_gpu(config: TrainConfig) -> str:
    """Why an elastic run of these settings trains on CPUs only; empty: it can use GPUs, or is not elastic."""
    mode = mode_of(config)
    if elastic_of(config) is None or mode is None:
        return ""
    if mode.channel is not Channel.COLLECTIVE:
        return f"an elastic run in mode {mode.name} trains on CPUs"
    if config.compress is not None or aggregate_of(config) != "mean":
        return "an elastic run with a codec or a robust aggregate trains on CPUs"
    return ""


def usable_transports(config: TrainConfig, facts: Facts) -> tuple[Transport, ...]:
    """Those that work for this mode, device and number of workers, best first."""
    if is_virtual(config):
        return (Transport.NONE,)  # all workers are in one process
    mode = mode_of(config)
    device = device_of(config, facts)
    num_workers = num_workers_of(config)
    if elastic_of(config) is not None and mode is not None and mode.channel is Channel.STORE:
        return (Transport.TCP,)  # a server that takes over was not there when the others began
    if elastic_of(config) is not None and mode is not None and mode.channel in _ON_HOSTS:
        if config.launcher == Launcher.AGENTS:
            return (Transport.TCP,)
        on_one = _ON_HOSTS[mode.channel]
        # Nodes of a Ray cluster may be on several machines.
        return (Transport.TCP, on_one) if _is_ray_cluster(config) else (on_one, Transport.TCP)
    every = tuple(t for t in Transport if t is not Transport.NONE)
    usable: tuple[Transport, ...] = every if mode is None else TRANSPORTS[mode.channel]
    if config.launcher in (Launcher.TORCHRUN, Launcher.RAY) and elastic_of(config) is None:
        usable = tuple(t for t in usable if t not in _ONE_PARENT)
    if device is Device.CPU:
        return tuple(t for t in usable if t not in _ON_THE_GPU)
    if config.launcher == Launcher.RAY:  # assigns a separate GPU to every worker
        return tuple(sorted(usable, key=lambda t: t not in _ON_THE_GPU))
    # NCCL refuses two ranks on one GPU; gloo shares it.
    local_workers = num_workers if facts.world is None else facts.world.local_size
    refused = {Transport.SHM} if local_workers <= facts.cuda_devices else {Transport.SHM, Transport.NCCL}
    if facts.cuda_devices > 1:
        refused.add(Transport.CUDA_IPC)  # the store's memory is one GPU's; others may not reach it
    if config.compress is not None:
        refused.add(Transport.CUDA_IPC)  # within one GPU's memory nothing travels
    return tuple(sorted((t for t in usable if t not in refused), key=lambda t: t not in _ON_THE_GPU))


def _is_ray_cluster(config: TrainConfig) -> bool:
    """Whether the address is that of a Ray cluster which may have nodes on other machines."""
    address = config.address or "local"
    host = address.removeprefix("ray://").rpartition(":")[0]
    return config.launcher == Launcher.RAY and address != "local" and host not in _LOOPBACK


def is_on_ray_nodes(config: TrainConfig) -> bool:
    """Whether the workers of an elastic run may be on several machines of a Ray cluster."""
    mode = mode_of(config)
    if config.launcher != Launcher.RAY or mode is None:
        return False
    if mode.channel is Channel.STORE:
        return True
    is_chosen = config.transport not in (None, "auto")
    return config.transport == Transport.TCP if is_chosen else _is_ray_cluster(config)


def transport_of(config: TrainConfig, facts: Facts) -> Transport:
    if config.transport in (None, "auto"):
        return usable_transports(config, facts)[0]
    return Transport(config.transport)


def ray_of(config: TrainConfig) -> OnRay | None:
    if config.launcher != Launcher.RAY:
        return None
    return OnRay(
        address=config.address or "local",
        placement=Placement(config.placement) if config.placement in tuple(Placement) else None,
        restarts=config.restarts or 0,
    )


def is_virtual(config: TrainConfig) -> bool:
    return config.launcher == Launcher.VIRTUAL


def vmap_of(config: TrainConfig, facts: Facts) -> bool:
    """Whether to use vmap. Not on a CPU: there, workers one after another give the same bits as processes."""
    if not is_virtual(config):
        return False
    return device_of(config, facts) is Device.CUDA if config.vmap is None else config.vmap


def pace_of(config: TrainConfig) -> float:
    """Duration of a step in virtual time; without one all waiting times would be 0."""
    if config.pace is None:
        return _VIRTUAL_PACE_S if is_virtual(config) else 0.0
    return config.pace


def batch_sizes_of(config: TrainConfig) -> tuple[int, ...]:
    if isinstance(config.batch_size, tuple):
        return config.batch_size
    return (32 if config.batch_size is None else config.batch_size,) * num_workers_of(config)


def steps_of(config: TrainConfig) -> int:
    return 200 if config.steps is None else config.steps


def compression_of(config: TrainConfig) -> Compression | None:
    """None also for a text that `check` refuses."""
    compression = None if config.compress is None else read_compression(config.compress)
    if not isinstance(compression, tuple):
        return None
    codec, amount = compression
    warmup = steps_of(config) // _DGC_WARMUP_SHARE if codec is Codec.DGC else 0
    return Compression(
        codec=codec,
        amount=amount,
        error_feedback=CODECS[codec].has_memory if config.error_feedback is None else config.error_feedback,
        warmup=warmup if config.compress_warmup is None else config.compress_warmup,
    )


def optimizer_of(config: TrainConfig) -> OptimizerChoice | None:
    if config.optimizer is None:
        return None
    default = 0.001 if config.optimizer in _ADAM_LIKE else 0.1
    return OptimizerChoice(
        name=config.optimizer,
        lr=default if config.lr is None else config.lr,
        weight_decay=config.weight_decay or 0.0,
    )


def lr_schedule_of(config: TrainConfig) -> RateSchedule | None:
    shape = RateShape(config.lr_schedule or RateShape.CONSTANT)
    warmup = config.lr_warmup or 0
    if shape is RateShape.CONSTANT and not warmup:
        return None
    return RateSchedule(shape=shape, warmup=warmup, steps=steps_of(config))


def lr_scale_of(config: TrainConfig) -> float:
    """Updates that are summed rather than averaged move N times as far; 1/N makes up for it."""
    mode = mode_of(config)
    if config.scale_lr == "linear":
        return float(num_workers_of(config))
    return 1.0 / num_workers_of(config) if mode is not None and mode.sums_updates else 1.0


def strategy_options_of(config: TrainConfig) -> StrategyOptions:
    reads = frozenset() if (mode := mode_of(config)) is None or mode.options is None else mode.options
    unsaid_bound = _DEFAULT_STALENESS if "staleness" in reads else None
    unsaid_period = _DEFAULT_SYNC_EVERY if "sync_every" in reads else 1
    unsaid_spares = default_backup_workers(processes_of(config)) if "backup_workers" in reads else 0
    bound = unsaid_bound if config.staleness is None else config.staleness
    return StrategyOptions(
        staleness=None if bound == "inf" else bound,
        staleness_range=4 if config.staleness_range is None else config.staleness_range,
        **_asgd_options_of(config),
        aggregate=aggregate_of(config),
        byzantine_tolerance=1 if config.byzantine_tolerance is None else config.byzantine_tolerance,
        backup_workers=unsaid_spares if config.backup_workers is None else config.backup_workers,
        sync_every=unsaid_period if config.sync_every is None else config.sync_every,
        elasticity=0.9 if config.elasticity is None else config.elasticity,
        clients_per_round=1.0 if config.clients_per_round is None else config.clients_per_round,
        post_local_after=config.post_local_after or 0,
        average_optimizer_state=bool(config.average_optimizer_state),
        outer_lr=0.7 if config.outer_lr is None else config.outer_lr,
        outer_momentum=0.9 if config.outer_momentum is None else config.outer_momentum,
        fragments=config.fragments or 1,
        sync_delay=config.sync_delay or 0,
        mixing=config.mixing or 0.0,
        freeze_after=_freeze_after_of(config) if "freeze_after" in reads else 1,
        gossip=gossip_of(config),
        topology=topology_of(config),
        adaptive=Allowed(config.adaptive or Allowed.AUTO),
        fsdp_precision=fsdp_precision_of(config),
        sync_batchnorm=bool(config.sync_batchnorm),
        on_nan=on_nan_of(config) if "on_nan" in reads else None,
    )


def fsdp_precision_of(config: TrainConfig) -> FsdpPrecision:
    precision = config.fsdp_precision
    return FsdpPrecision(precision) if precision in tuple(FsdpPrecision) else FsdpPrecision.NONE


def on_nan_of(config: TrainConfig) -> OnNan | None:
    """Elastic runs check for NaN by default; others only if it is set."""
    if config.on_nan in tuple(OnNan):
        return OnNan(config.on_nan)
    return None if elastic_of(config) is None else OnNan.STOP


def aggregate_of(config: TrainConfig) -> str:
    """A built-in aggregate in lower case; `module:function` unchanged."""
    written = config.aggregate or "mean"
    return written if ":" in written else written.lower()


def _freeze_after_of(config: TrainConfig) -> int:
    """A fifth, as the paper's 1-bit Adam takes 15 to 20 % of its steps."""
    return max(1, steps_of(config) // 5) if config.freeze_after is None else config.freeze_after


def gossip_of(config: TrainConfig) -> GossipVariant:
    gossip = config.gossip
    return GossipVariant(gossip) if gossip in tuple(GossipVariant) else GossipVariant.DPSGD


def topology_of(config: TrainConfig) -> Topology:
    if config.topology in tuple(Topology):
        return Topology(config.topology)
    return Topology.EXPONENTIAL if gossip_of(config) is GossipVariant.PUSH_SUM else Topology.RING


def default_backup_workers(num_workers: int) -> int:
    """One for every eight, at least one; but at least one gradient must count."""
    return min(num_workers - 1, max(1, num_workers // 8))


def _asgd_options_of(config: TrainConfig) -> _AsgdOptions:
    variant = AsgdVariant(config.asgd or AsgdVariant.PLAIN)
    options: _AsgdOptions = {"asgd": variant, "dc_lambda": 0.0, "max_staleness": None}
    if variant is AsgdVariant.DC:
        options["dc_lambda"] = _DEFAULT_DC_LAMBDA if config.dc_lambda is None else config.dc_lambda
    if variant is AsgdVariant.RINGMASTER:
        # Above the mean, N-1, so that at equal speeds nothing is thrown away.
        options["max_staleness"] = config.max_staleness or 2 * num_workers_of(config)
    return options


def run_name_of(config: TrainConfig) -> str:
    if config.name is not None:
        return config.name
    name = f"{task_of(config)}-{mode_name_of(config)}".lower()
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:100]
