"""How is a config written down so that reading the file gives it back? The inverse of `load`, as YAML.

Only what was said is written. Where a run goes is left out: that is the next run's to say.
"""

from paceline.config.byzantine import attack_text
from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.stragglers import rule_text
from paceline.config.train_config import TrainConfig
from paceline.errors import ConfigError, Problem

_NOT_WRITTEN = ("run_dir",)


def as_file(config: TrainConfig) -> str:
    """ConfigError for the one thing that no file can say: what was read from a recorded trace."""
    import yaml

    said = {
        key.name: _plain(config, key.name, key.kind)
        for key in KEYS.values()
        if key.name not in _NOT_WRITTEN and getattr(config, key.name) not in (None, (), {})
    }
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=110)


def _plain(config: TrainConfig, name: str, kind: Kind) -> object:
    value = getattr(config, name)
    match kind:
        case Kind.STRAGGLERS:
            if any(rule.steps is not None for rule in value):
                what = "straggler names a recorded trace, which cannot be written into a config file"
                raise ConfigError(
                    [Problem(what, "write straggler rules, such as worker=0,factor=3", config.origin(name))]
                )
            return [rule_text(rule) for rule in value]
        case Kind.BYZANTINE:
            return [attack_text(rule) for rule in value]
        case Kind.EXPORTS:
            return [target.text for target in value]
        case Kind.OPTIONS:
            return dict(value)
        case Kind.DURATION:
            return f"{value!r}s"
        case _:
            return list(value) if isinstance(value, tuple) else value
