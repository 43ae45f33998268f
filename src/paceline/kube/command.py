"""Which `paceline train` does a job run? Exactly the settings that make its plan, and none that are default.

A setting is left out when the plan is the same without it. So whoever reads the
manifest sees what is special about the run; and a test reads the command back
by our own loader, to the same plan.
"""

from collections.abc import Mapping
from dataclasses import fields, replace

from paceline.config.byzantine import attack_text
from paceline.config.facts import Facts
from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.stragglers import rule_text
from paceline.config.train_config import TrainConfig
from paceline.config.world import adopt
from paceline.errors import ConfigError
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve

# How many samples a task has is known where it runs. Epochs are checked as if there were plenty, so that
# nothing is refused here which works there; the steps that follow from it are not written anywhere.
_PLENTY = 1 << 30
_OUTSIDE = ("origins", "run_dir", "save_dir")  # no part of a plan: they say where results go
_FIRST = ("launcher", "address", "task", "mode", "num_workers")  # the order in which people say it


def facts_in_pods(config: TrainConfig) -> Facts:
    """Of the pods, not of this machine: what the settings name is in the image."""
    named = (config.task, config.mode, config.aggregate)
    return Facts(
        modules=frozenset(n.partition(":")[0] for n in named if n is not None and ":" in n),
        packages=frozenset(name for target in config.export or () for name in target.packages),
    )


def plan_of(config: TrainConfig, facts: Facts) -> Plan:
    if facts.world is not None:
        config = adopt(config, facts.world)
    return resolve(config, facts, count=lambda _: _PLENTY)


def train_command(config: TrainConfig, facts: Facts) -> tuple[str, ...]:
    """The words of the command line; raises ConfigError as `train` would."""
    return ("paceline", "train", *flags_of(_without_defaults(config, facts)))


def worker_command(config: TrainConfig, facts: Facts) -> tuple[str, ...]:
    """The same for processes that torchrun starts, behind torchrun's own words."""
    return ("-m", "paceline.worker", *flags_of(_without_defaults(config, facts)))


def flags_of(config: TrainConfig) -> list[str]:
    """Everything that was said, as flags."""
    words: list[str] = []
    for name in (*_FIRST, *(key for key in KEYS if key not in _FIRST)):
        value = getattr(config, name)
        if value is not None:
            words += words_of(name, value)
    return words


def _without_defaults(config: TrainConfig, facts: Facts) -> TrainConfig:
    plan = plan_of(config, facts)
    for field in fields(config):
        if field.name in _OUTSIDE or getattr(config, field.name) is None:
            continue
        shorter = replace(config, **{field.name: None})  # type: ignore[arg-type]  # None: not said
        try:
            same = plan_of(shorter, facts) == plan
        except ConfigError:
            continue  # without it, the others make no sense
        if same:
            config = shorter
    return config


def words_of(name: str, value: object) -> list[str]:
    """The flag, or flags, that say this value of a key."""
    key = KEYS[name]
    match key.kind:
        case Kind.YES_NO:
            return [key.flag if value else f"--no-{key.flag.removeprefix('--')}"]
        case Kind.OPTIONS:
            assert isinstance(value, Mapping), "options are a mapping"
            return [word for k, v in value.items() for word in (key.flag, f"{k}={_option(v)}")]
        case Kind.STRAGGLERS:
            assert isinstance(value, tuple), "rules are a tuple"
            return [word for rule in value for word in (key.flag, rule_text(rule))]
        case Kind.BYZANTINE:
            assert isinstance(value, tuple), "rules are a tuple"
            return [word for rule in value for word in (key.flag, attack_text(rule))]
        case Kind.EXPORTS:
            assert isinstance(value, tuple), "exports are a tuple"
            return [word for target in value for word in (key.flag, target.text)]
        case Kind.DURATION:
            return [key.flag, f"{value!r}s"]
        case _:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            return [key.flag, text]


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
