"""Can the parameters of this run be held by servers in several parts? Every reason why not, at once."""

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES, TASKS, Channel

# Behind servers that come and go: of each gradient alone, and of all gradients of a step.
_SERVED = [mode for mode in MODES.values() if mode.is_elastic and mode.channel is Channel.STORE]
ASYNCHRONOUS = tuple(mode.name for mode in _SERVED if mode.sums_updates)
SYNCHRONOUS = tuple(mode.name for mode in _SERVED if not mode.sums_updates)


def check_parts(config: TrainConfig) -> list[Problem]:
    if config.servers is None or config.servers == 1:
        return []
    mode, parts = decide.mode_name_of(config), config.servers
    task = config.task or ""
    reasons = [
        (
            "servers",
            mode in SYNCHRONOUS,
            f"servers is {parts}, but which gradients mode {mode} averages is decided by one server,"
            " and the others would have to be told before each update",
            "leave servers out, or use --mode ssp",
        ),
        (
            "servers",
            mode not in (*ASYNCHRONOUS, *SYNCHRONOUS),
            f"servers is {parts}, but mode {mode} has no elastic servers in parts",
            f"use --mode {' or '.join(ASYNCHRONOUS)}",
        ),
        (
            "asgd",
            mode == "asgd" and config.asgd not in (None, "plain"),
            f"asgd is {config.asgd}, which goes by a gradient's version: each of {parts} parts has its own",
            "use --asgd plain, or leave servers out",
        ),
        (
            "clip_norm",
            config.clip_norm is not None,
            f"clip_norm needs the norm of the whole gradient, and each of {parts} servers has a part",
            "leave clip_norm or servers out",
        ),
        (
            "servers",
            bool(task) and task not in TASKS and config.optimizer is None,
            f"servers is {parts}, but nobody knows whether the optimizer of {task} can be applied in parts",
            "name one with --optimizer: all of those treat every number by itself",
        ),
    ]
    return [Problem(what, hint, config.origin(key)) for key, applies, what, hint in reasons if applies]
