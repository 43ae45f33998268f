"""Can this be trained by processes that somebody else started? Every reason why not, at once."""

from collections.abc import Callable

from paceline.config.facts import Facts
from paceline.config.train_config import TrainConfig
from paceline.config.world import World
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import Channel
from paceline.plan.plan import Launcher

START = "torchrun --nproc_per_node=N -m paceline.worker"


def check_torchrun(config: TrainConfig, facts: Facts, are_sound: Callable[..., bool]) -> list[Problem]:
    if facts.world is None:
        return [] if config.launcher != Launcher.TORCHRUN else [_nobody_started_us(config)]
    found = [*_launcher(config), *_size(config, facts.world, are_sound), *_elastic(config)]
    return [*found, *_mode(config, facts.world)] if are_sound("mode") else found


def _nobody_started_us(config: TrainConfig) -> Problem:
    hint = f"start it with  {START}  and the same flags, or leave launcher out"
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


def _elastic(config: TrainConfig) -> list[Problem]:
    if decide.elastic_of(config) is None:
        return []
    what = "an elastic run starts and replaces its workers itself, but torchrun started these"
    hint = "use `paceline train --elastic`, or leave elastic out: torchrun --max-restarts resumes by itself"
    return [_problem(config, "elastic", what, hint)]


def _mode(config: TrainConfig, world: World) -> list[Problem]:
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


def _problem(config: TrainConfig, key: str, what: str, hint: str) -> Problem:
    return Problem(what, hint, config.origin(key))
