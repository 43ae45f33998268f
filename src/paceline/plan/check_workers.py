"""Can this run go on when workers come and go? Every reason why not, at once."""

import re
from collections.abc import Callable

from paceline.config.environment import Facts, World
from paceline.config.train_config import TrainConfig
from paceline.core.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Device, Launcher, Transport


def check_elastic(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if not are_sound("elastic", "shards", "min_workers", "max_workers", "num_workers", "mode"):
        return []
    said = {config.shards, config.min_workers, config.max_workers}
    elastic = decide.elastic_of(config)
    if elastic is None:
        if said == {None}:
            return _only_elastic(config)
        what = "elastic is no, but shards, min_workers or max_workers is set"
        return [_problem(config, "elastic", what, "leave --no-elastic out, or the others")]
    return [*_numbers(config), *_combinations(config)]


def _only_elastic(config: TrainConfig) -> list[Problem]:
    """What is only heard by a run that goes on when workers come and go."""
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
    elastic, shards = decide.elastic_of(config), decide.num_workers_of(config)
    assert elastic is not None, "the run is elastic"
    problems = []
    if elastic.min_workers > elastic.workers:
        what = f"min_workers is {elastic.min_workers}, but the run begins with {elastic.workers} workers"
        problems.append(_problem(config, "min_workers", what, f"set it to {elastic.workers} or less"))
    if elastic.max_workers < elastic.workers:
        what = f"max_workers is {elastic.max_workers}, but the run begins with {elastic.workers} workers"
        problems.append(_problem(config, "max_workers", what, f"set it to {elastic.workers} or more"))
    if elastic.max_workers > shards:
        what = f"{elastic.max_workers} workers would share {shards} shards, and some would have nothing to do"
        problems.append(_problem(config, "shards", what, f"set shards to {elastic.max_workers} or more"))
    return problems


def _combinations(config: TrainConfig) -> list[Problem]:
    """What an elastic run cannot do yet."""
    mode, row = decide.mode_name_of(config), decide.mode_of(config)
    is_elastic = row is not None and row.is_elastic
    is_served = is_elastic and row is not None and row.channel is Channel.STORE
    # By torch's process group, which is made again in every generation.
    is_torchs = is_elastic and row is not None and row.channel is Channel.TORCH
    is_split = row is not None and row.is_split
    usual = f"use --mode {' or '.join(name for name, other in MODES.items() if other.is_elastic)}"
    reasons = [
        ("mode", not is_elastic, f"mode {mode} cannot go on with other workers", usual),
        (
            "transport",
            not (is_served or is_torchs) and config.transport not in (None, "auto", Transport.SHM),
            f"transport is {config.transport}, but workers that come and go share memory",
            "leave transport out",
        ),
        (
            "transport",
            is_served and config.transport not in (None, "auto", Transport.TCP),
            f"transport is {config.transport}, but servers that come and go are reached by tcp",
            "leave transport out",
        ),
        (
            "on_slow",
            is_torchs and config.on_slow not in (None, "tolerate"),
            f"on_slow is {config.on_slow}, but torch hides in backward who waits for whom in mode {mode}",
            "leave on_slow out, or use --mode ssgd",
        ),
        (
            "on_give_up",
            is_split and config.on_give_up == "pause",
            f"{mode} has nothing in memory that is not lost with a worker, so there is nothing to wait with",
            "leave on_give_up out, and resume the run from its checkpoint",
        ),
        (
            "checkpoint_every",
            is_split and config.checkpoint_every == 0,
            f"checkpoint_every is 0, but a worker of {mode} takes its part of the model with it",
            "set checkpoint_every to how many steps may be made again, or leave it out",
        ),
        (
            "on_slow",
            is_served and config.on_slow is not None,
            f"on_slow is {config.on_slow}, but in mode {mode} nobody waits for a slow worker's shards",
            "leave on_slow out: whoever is free takes the next share",
        ),
        (
            "on_slow",
            mode == "adaptive" and config.on_slow == "rebalance",
            "mode adaptive deals out shards by speed anyway",
            "leave on_slow out, or use --on-slow replace",
        ),
        (
            "on_give_up",
            is_served and config.on_give_up == "pause",
            f"a run of mode {mode} cannot be paused for an operator",
            "leave on_give_up out, and resume it from its checkpoint",
        ),
        ("device", config.device == Device.CUDA, "an elastic run trains on the CPU", "use --device cpu"),
        ("launcher", decide.is_virtual(config), "virtual workers cannot die", "use --launcher local"),
        ("compress", config.compress is not None, "compress has a memory for each worker", "leave it out"),
        (
            "aggregate",
            config.aggregate not in (None, "mean"),
            "an elastic run takes the mean of its shards",
            "leave aggregate out",
        ),
        ("byzantine", bool(config.byzantine), "workers of an elastic run are honest", "leave byzantine out"),
    ]
    return [_problem(config, key, what, hint) for key, applies, what, hint in reasons if applies]


def _problem(config: TrainConfig, key: str, what: str, hint: str) -> Problem:
    return Problem(what, hint, config.origin(key))


_ADDRESS = re.compile(r"local|auto|(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_OF_RAY = ("address", "placement", "restarts")


def check_ray(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if config.launcher != Launcher.RAY:
        return [_not_on_ray(config, key) for key in _OF_RAY if getattr(config, key) is not None]
    found = [*_address(config), *_ray_elastic(config)]
    return [*found, *_ray_mode(config)] if are_sound("mode") else found


def _not_on_ray(config: TrainConfig, key: str) -> Problem:
    hint = f"add --launcher ray, or leave {key} out"
    if key == "restarts":
        hint += "; --elastic replaces lost workers on this machine"
    return _problem(config, key, f"{key} is for launcher ray, but the launcher is another one", hint)


def _address(config: TrainConfig) -> list[Problem]:
    if config.address is None:
        return []
    fits = _ADDRESS.fullmatch(config.address)
    if fits is not None and (fits[3] is None or 0 < int(fits[3]) < 65536):
        return []
    what = f"address is {config.address!r}, but it must be local, auto, HOST:PORT or ray://HOST:PORT"
    return [_problem(config, "address", what, "use --address local, which starts Ray here, for example")]


def _ray_elastic(config: TrainConfig) -> list[Problem]:
    if decide.elastic_of(config) is None or not config.restarts:
        return []
    what = f"restarts is {config.restarts}, but an elastic run replaces a lost worker while the others go on"
    hint = "leave restarts out; or leave elastic out: after a loss all go on from the newest checkpoint"
    return [_problem(config, "restarts", what, hint)]


def _ray_mode(config: TrainConfig) -> list[Problem]:
    mode = decide.mode_of(config)
    if mode is None or decide.elastic_of(config) is not None:
        return []  # elastic ones are on one machine, and say so themselves
    if mode.channel is Channel.PEERS:
        what = f"mode {mode.name} needs memory that its workers share from birth, and actors share none"
        hint = "use --mode gossip, which also averages with neighbours, or --launcher local"
        return [_problem(config, "mode", what, hint)]
    return []


TORCHRUN_COMMAND = "torchrun --nproc_per_node=N -m paceline.worker"


def check_torchrun(config: TrainConfig, facts: Facts, are_sound: Callable[..., bool]) -> list[Problem]:
    if facts.world is None:
        return [] if config.launcher != Launcher.TORCHRUN else [_not_started_by_torchrun(config)]
    found = [*_launcher(config), *_size(config, facts.world, are_sound), *_torchrun_elastic(config)]
    return [*found, *_torchrun_mode(config, facts.world)] if are_sound("mode") else found


def _not_started_by_torchrun(config: TrainConfig) -> Problem:
    hint = f"start it with  {TORCHRUN_COMMAND}  and the same flags, or leave launcher out"
    return _problem(config, "launcher", "launcher is torchrun, but torchrun did not start this command", hint)


def _launcher(config: TrainConfig) -> list[Problem]:
    if config.launcher in (None, Launcher.TORCHRUN):
        return []
    what = f"launcher is {config.launcher}, but these processes were started by somebody else"
    return [_problem(config, "launcher", what, "leave launcher out, or use `paceline train`")]


def _size(config: TrainConfig, world: World, are_sound: Callable[..., bool]) -> list[Problem]:
    said = config.num_workers
    if said is None or said == world.size or not are_sound("num_workers"):
        return []
    if world.is_alone:
        what = f"num_workers is {said}, but this is one process: torchrun did not start it"
        hint = f"leave num_workers out, or use  torchrun --nproc_per_node={said} -m paceline.worker"
    else:
        what = f"num_workers is {said}, but WORLD_SIZE is {world.size}"
        hint = f"leave num_workers out, or start {said} processes"
    return [_problem(config, "num_workers", what, hint)]


def _torchrun_elastic(config: TrainConfig) -> list[Problem]:
    if decide.elastic_of(config) is None:
        return []
    what = "an elastic run starts and replaces its workers itself, but torchrun started these"
    hint = "use `paceline train --elastic`, or leave elastic out: torchrun --max-restarts resumes by itself"
    return [_problem(config, "elastic", what, hint)]


def _torchrun_mode(config: TrainConfig, world: World) -> list[Problem]:
    mode = decide.mode_of(config)
    if mode is None or mode.channel not in (Channel.PEERS, Channel.STORE):
        return []
    if mode.channel is Channel.PEERS:
        what = f"mode {mode.name} needs memory that its workers share from birth"
        hint = "use --mode gossip, which also averages with neighbours, or `paceline train`"
    elif world.is_one_host:
        return []
    else:
        what = f"mode {mode.name} has a parameter server, and {world.size} processes on several hosts"
        what += " would send it their gradients in the clear"
        hint = "use a mode in which all meet, such as ssgd or localsgd, or one host"
    return [_problem(config, "mode", what, hint)]
