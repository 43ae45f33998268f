"""Checks of elastic runs and of runs that Ray or torchrun launches."""

import re
from collections.abc import Callable

from paceline.config.environment import Facts, World
from paceline.config.train_config import TrainConfig
from paceline.core.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Device, Launcher, Placement, Transport


def check_elastic(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if not are_sound("elastic", "shards", "min_workers", "max_workers", "num_workers", "mode"):
        return []
    settings = {config.shards, config.min_workers, config.max_workers}
    elastic = decide.elastic_of(config)
    if elastic is None and config.launcher == Launcher.AGENTS:
        message = "launcher is agents, but the run is not elastic: agents replace what is lost with a host"
        return [_problem(config, "launcher", message, "add --elastic")]
    if elastic is None:
        if settings == {None}:
            return _only_elastic(config)
        message = "elastic is no, but shards, min_workers or max_workers is set"
        return [_problem(config, "elastic", message, "leave --no-elastic out, or the others")]
    return [*_numbers(config), *_combinations(config)]


def _only_elastic(config: TrainConfig) -> list[Problem]:
    """Settings that only elastic runs read."""
    policies = [
        ("on_slow", config.on_slow),
        ("on_give_up", config.on_give_up),
        ("max_replacements", config.max_replacements),
    ]
    return [
        _problem(config, key, f"{key} is {value}, but the run is not elastic", "add --elastic or --shards")
        for key, value in policies
        if value is not None
    ]


def _numbers(config: TrainConfig) -> list[Problem]:
    elastic = decide.elastic_of(config)
    shards = decide.num_workers_of(config)
    assert elastic is not None, "the run is elastic"
    problems = []
    if elastic.min_workers > elastic.workers:
        message = f"min_workers is {elastic.min_workers}, but the run starts with {elastic.workers} workers"
        problems.append(_problem(config, "min_workers", message, f"set it to {elastic.workers} or less"))
    if elastic.max_workers < elastic.workers:
        message = f"max_workers is {elastic.max_workers}, but the run starts with {elastic.workers} workers"
        problems.append(_problem(config, "max_workers", message, f"set it to {elastic.workers} or more"))
    if elastic.max_workers > shards:
        message = f"{elastic.max_workers} workers would share {shards} shards, so some would be idle"
        problems.append(_problem(config, "shards", message, f"set shards to {elastic.max_workers} or more"))
    return problems


def _combinations(config: TrainConfig) -> list[Problem]:
    """Combinations that elastic runs do not support yet."""
    mode = decide.mode_name_of(config)
    row = decide.mode_of(config)
    is_elastic = row is not None and row.is_elastic
    is_served = is_elastic and row is not None and row.channel is Channel.STORE
    # Modes with torch's process group, which is created again in every generation.
    is_torchs = is_elastic and row is not None and row.channel is Channel.TORCH
    is_split = row is not None and row.is_split
    options = decide.strategy_options_of(config)
    is_streaming = options.fragments > 1 or options.sync_delay > 0 or options.mixing > 0
    aggregate = decide.aggregate_of(config)
    not_on_gpu = decide.not_on_gpu(config)
    why_not = "" if row is None or not row.not_elastic else f": {row.not_elastic}"
    other_modes = f"use --mode {' or '.join(name for name, other in MODES.items() if other.is_elastic)}"
    reasons = [
        (
            "mode",
            not is_elastic,
            f"mode {mode} cannot continue with a different set of workers{why_not}",
            other_modes,
        ),
        (
            "transport",
            not (is_served or is_torchs)
            and config.transport not in (None, "auto", Transport.SHM, Transport.TCP),
            f"transport is {config.transport}, but elastic workers communicate by shared memory or by tcp",
            "leave transport out, or use --transport tcp",
        ),
        (
            "transport",
            is_served and config.transport not in (None, "auto", Transport.TCP),
            f"transport is {config.transport}, but elastic servers communicate by tcp",
            "leave transport out",
        ),
        (
            "on_slow",
            is_torchs and config.on_slow not in (None, "tolerate"),
            f"on_slow is {config.on_slow}, but in mode {mode} torch waits within backward, where waits "
            "cannot be measured",
            "leave on_slow out, or use --mode ssgd",
        ),
        (
            "on_give_up",
            is_split and config.on_give_up == "pause",
            f"{mode} keeps no replica in memory, so a lost worker's shard exists only in the checkpoint",
            "leave on_give_up out, and resume the run from its checkpoint",
        ),
        (
            "checkpoint_every",
            is_split and config.checkpoint_every == 0,
            f"checkpoint_every is 0, but in mode {mode} a lost worker's shard of the model exists only in a "
            "checkpoint",
            "set checkpoint_every to the number of steps that may be repeated, or leave it out",
        ),
        (
            "on_slow",
            is_served and config.on_slow is not None,
            f"on_slow is {config.on_slow}, but in mode {mode} no worker waits for a slow worker's shards",
            "leave on_slow out: the next idle worker takes the next work unit",
        ),
        (
            "on_slow",
            mode == "adaptive" and config.on_slow == "rebalance",
            "mode adaptive already assigns shards by speed",
            "leave on_slow out, or use --on-slow replace",
        ),
        (
            "on_give_up",
            is_served and config.on_give_up == "pause",
            f"a run of mode {mode} cannot be paused for an operator",
            "leave on_give_up out, and resume it from its checkpoint",
        ),
        (
            "device",
            config.device == Device.CUDA and not_on_gpu != "",
            not_on_gpu,
            "use --device cpu; elastic ssgd, localsgd, diloco, fedavg and adaptive with exact means use GPUs",
        ),
        ("launcher", decide.is_virtual(config), "virtual workers cannot die", "use --launcher local"),
        (
            "compress",
            config.compress is not None and mode == "diloco" and is_streaming,
            "the fragments of an elastic diloco run are averaged uncompressed",
            "leave compress out, or leave fragments, sync_delay and mixing out",
        ),
        (
            "aggregate",
            is_served and aggregate != "mean",
            f"an update of mode {mode} takes the gradients of the workers that are left, which may be fewer "
            f"than {aggregate} needs",
            "use --mode ssgd, which always aggregates the gradients of all shards",
        ),
    ]
    return [_problem(config, key, message, hint) for key, applies, message, hint in reasons if applies]


def _problem(config: TrainConfig, key: str, message: str, hint: str) -> Problem:
    return Problem(message, hint, config.origin(key))


_ADDRESS = re.compile(r"local|auto|(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_OF_RAY = ("address", "placement", "restarts")


def check_ray(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if config.launcher != Launcher.RAY:
        return [_not_on_ray(config, key) for key in _OF_RAY if getattr(config, key) is not None]
    problems = [*_address(config), *_ray_elastic(config)]
    return [*problems, *_ray_mode(config)] if are_sound("mode") else problems


def _not_on_ray(config: TrainConfig, key: str) -> Problem:
    hint = f"add --launcher ray, or leave {key} out"
    if key == "restarts":
        hint += "; --elastic replaces lost workers on this machine"
    return _problem(config, key, f"{key} needs launcher ray, but the launcher is another one", hint)


def _address(config: TrainConfig) -> list[Problem]:
    if config.address is None:
        return []
    fits = _ADDRESS.fullmatch(config.address)
    if fits is not None and (fits[3] is None or 0 < int(fits[3]) < 65536):
        return []
    message = f"address is {config.address!r}, but it must be local, auto, HOST:PORT or ray://HOST:PORT"
    return [_problem(config, "address", message, "use --address local, which starts Ray here, for example")]


def _ray_elastic(config: TrainConfig) -> list[Problem]:
    if decide.elastic_of(config) is None:
        return []
    is_strict = config.placement in (Placement.STRICT_PACK, Placement.STRICT_SPREAD)
    if is_strict and decide.is_on_ray_nodes(config):
        message = (
            f"placement is {config.placement}, but workers of this elastic run are started, moved and added "
            "one by one"
        )
        return [_problem(config, "placement", message, "use --placement spread or pack")]
    if not config.restarts:
        return []
    message = (
        f"restarts is {config.restarts}, but an elastic run replaces a lost worker while the others continue"
    )
    hint = (
        "leave restarts out; or leave elastic out: after a loss all workers resume from the newest checkpoint"
    )
    return [_problem(config, "restarts", message, hint)]


def _ray_mode(config: TrainConfig) -> list[Problem]:
    mode = decide.mode_of(config)
    if mode is None or decide.elastic_of(config) is not None:
        return []  # elastic ones are on one machine; another check reports that
    if mode.channel is Channel.PEERS:
        message = f"mode {mode.name} needs shared memory that its workers inherit, and Ray actors share none"
        hint = "use --mode gossip, which also averages with neighbours, or --launcher local"
        return [_problem(config, "mode", message, hint)]
    return []


TORCHRUN_COMMAND = "torchrun --nproc_per_node=N -m paceline.worker"


def check_torchrun(config: TrainConfig, facts: Facts, are_sound: Callable[..., bool]) -> list[Problem]:
    if facts.world is None:
        return [] if config.launcher != Launcher.TORCHRUN else [_not_started_by_torchrun(config)]
    problems = [*_launcher(config), *_size(config, facts.world, are_sound), *_torchrun_elastic(config)]
    return [*problems, *_torchrun_mode(config, facts.world)] if are_sound("mode") else problems


def _not_started_by_torchrun(config: TrainConfig) -> Problem:
    hint = f"start it with  {TORCHRUN_COMMAND}  and the same flags, or leave launcher out"
    return _problem(config, "launcher", "launcher is torchrun, but torchrun did not start this command", hint)


def _launcher(config: TrainConfig) -> list[Problem]:
    if config.launcher in (None, Launcher.TORCHRUN):
        return []
    message = f"launcher is {config.launcher}, but these processes were started by torchrun"
    return [_problem(config, "launcher", message, "leave launcher out, or use `paceline train`")]


def _size(config: TrainConfig, world: World, are_sound: Callable[..., bool]) -> list[Problem]:
    num_workers = config.num_workers
    if num_workers is None or num_workers == world.size or not are_sound("num_workers"):
        return []
    if world.is_alone:
        message = f"num_workers is {num_workers}, but this is one process: torchrun did not start it"
        hint = f"leave num_workers out, or use  torchrun --nproc_per_node={num_workers} -m paceline.worker"
    else:
        message = f"num_workers is {num_workers}, but WORLD_SIZE is {world.size}"
        hint = f"leave num_workers out, or start {num_workers} processes"
    return [_problem(config, "num_workers", message, hint)]


def _torchrun_elastic(config: TrainConfig) -> list[Problem]:
    if decide.elastic_of(config) is None:
        return []
    message = "an elastic run starts and replaces its workers itself, but torchrun started these"
    hint = "use `paceline train --elastic`, or leave elastic out: torchrun --max-restarts resumes by itself"
    return [_problem(config, "elastic", message, hint)]


def _torchrun_mode(config: TrainConfig, world: World) -> list[Problem]:
    mode = decide.mode_of(config)
    if mode is None or mode.channel not in (Channel.PEERS, Channel.STORE):
        return []
    if mode.channel is Channel.PEERS:
        message = f"mode {mode.name} needs shared memory that its workers inherit"
        hint = "use --mode gossip, which also averages with neighbours, or `paceline train`"
    elif world.is_one_host:
        return []
    else:
        message = f"mode {mode.name} has a parameter server, and {world.size} processes on several hosts"
        message += " would send it their gradients unencrypted"
        hint = "use a mode with an all-reduce, such as ssgd or localsgd, or one host"
    return [_problem(config, "mode", message, hint)]
