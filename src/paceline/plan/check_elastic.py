"""Can this run go on when workers come and go? Every reason why not, at once."""

from collections.abc import Callable

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES, Channel
from paceline.plan.check_parts import check_parts
from paceline.plan.plan import Device, Transport


def check_elastic(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if not are_sound("elastic", "shards", "min_workers", "max_workers", "servers", "num_workers", "mode"):
        return []
    said = {config.shards, config.min_workers, config.max_workers, config.servers}
    elastic = decide.elastic_of(config)
    if elastic is None:
        if said == {None}:
            return _only_elastic(config)
        what = "elastic is no, but shards, min_workers, max_workers or servers is set"
        return [_problem(config, "elastic", what, "leave --no-elastic out, or the others")]
    return [*_numbers(config), *_combinations(config), *check_parts(config)]


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
