"""Can this be trained by actors of Ray? Every reason why not, at once."""

import re
from collections.abc import Callable

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import Channel
from paceline.plan.plan import Launcher

_ADDRESS = re.compile(r"local|auto|(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_OF_RAY = ("address", "placement", "restarts")


def check_ray(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if config.launcher != Launcher.RAY:
        return [_not_on_ray(config, key) for key in _OF_RAY if getattr(config, key) is not None]
    found = [*_address(config), *_elastic(config)]
    return [*found, *_mode(config)] if are_sound("mode") else found


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


def _elastic(config: TrainConfig) -> list[Problem]:
    if decide.elastic_of(config) is None or not config.restarts:
        return []
    what = f"restarts is {config.restarts}, but an elastic run replaces a lost worker while the others go on"
    hint = "leave restarts out; or leave elastic out: after a loss all go on from the newest checkpoint"
    return [_problem(config, "restarts", what, hint)]


def _mode(config: TrainConfig) -> list[Problem]:
    mode = decide.mode_of(config)
    if mode is None or decide.elastic_of(config) is not None:
        return []  # elastic ones are on one machine, and say so themselves
    if mode.channel is Channel.PEERS:
        what = f"mode {mode.name} needs memory that its workers share from birth, and actors share none"
        hint = "use --mode gossip, which also averages with neighbours, or --launcher local"
        return [_problem(config, "mode", what, hint)]
    return []


def _problem(config: TrainConfig, key: str, what: str, hint: str) -> Problem:
    return Problem(what, hint, config.origin(key))
