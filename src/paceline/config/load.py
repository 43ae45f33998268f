"""Loader of settings from all sources: flag over variable over file; and the config as YAML.

Every problem is collected, none raised: `plan.resolve` adds its own and
reports all of them at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline.config.fault_rules import attack_text, read_byzantine, read_straggler, straggler_text
from paceline.config.file import flatten_sections, read_file
from paceline.config.key import Key, Kind
from paceline.config.keys import KEYS
from paceline.config.train_config import ExportKind, ExportTarget, Option, TrainConfig
from paceline.config.values import (
    FileContent,
    Raw,
    RawSetting,
    Unreadable,
    options_in,
    read,
    read_option,
    read_text,
    show_value,
)
from paceline.core.environ import PREFIX
from paceline.core.errors import ConfigError, Mistake, Problem, with_code
from paceline.core.humanize import did_you_mean
from paceline.sync.fault_rules import ByzantineRule, StragglerRule

# `tensorboard[=FOLDER]`, `mlflow[=ADDRESS]`, `wandb[=offline|online]`. Nothing
# secret may be written here: it would stay in plan.json. Keys and passwords are
# read from the environment, by the vendors' own code.

_EXPORT_EXAMPLE = "write for example tensorboard, mlflow=http://127.0.0.1:5000 or wandb=offline"
_WANDB_MODES = ("offline", "online")


def read_export(raw: Raw, *, where: str | None, folder: Path) -> tuple[ExportTarget, ...]:
    """The target of one entry. Raises ConfigError."""
    try:
        text = read_text(raw)
    except Unreadable as error:
        raise ConfigError(
            [Problem(f"export is {show_value(raw)}, but {error.why}", _EXPORT_EXAMPLE, where)]
        ) from error
    name, equals, rest = text.partition("=")
    name = name.strip().lower()
    rest = rest.strip()
    if name not in list(ExportKind):
        hint = did_you_mean(
            name, ExportKind, otherwise=f"exports are {', '.join(ExportKind)}; {_EXPORT_EXAMPLE}"
        )
        raise ConfigError([Problem(f"there is no export {show_value(name)}", hint, where)])
    if equals and not rest:
        message = f"export {show_value(text)} has no value after its ="
        raise ConfigError([Problem(message, f"leave the = out, or {_EXPORT_EXAMPLE}", where)])
    return (
        ExportTarget(kind=ExportKind(name), where=_export_location(ExportKind(name), rest, where, folder)),
    )


def _export_location(kind: ExportKind, text: str, where: str | None, folder: Path) -> str | None:
    if not text:
        return None
    match kind:
        case ExportKind.TENSORBOARD:
            return str(folder / text)
        case ExportKind.WANDB if text.lower() in _WANDB_MODES:
            return text.lower()
        case ExportKind.WANDB:
            message = f"export wandb is {show_value(text)}, but it must be offline or online"
            raise ConfigError([Problem(message, "write wandb=offline; WANDB_PROJECT names a project", where)])
        case ExportKind.MLFLOW:
            return _address(text, where, folder)


def _address(text: str, where: str | None, folder: Path) -> str:
    if ":" not in text:
        return str(folder / text)
    try:
        has_secret = urlsplit(text).password is not None or "@" in urlsplit(text).netloc
    except ValueError as error:
        message = f"export mlflow is {show_value(text)}, which is not a valid URL: {error}"
        raise ConfigError([Problem(message, _EXPORT_EXAMPLE, where)]) from error
    if has_secret:
        # The value is not shown: what is printed is kept in logs.
        message = "export mlflow names a user or a password, which would stay in plan.json"
        hint = "leave them out of the address, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise ConfigError(
            [Problem(message, f"{hint}; or set MLFLOW_TRACKING_URI and write mlflow alone", where)]
        )
    return text


def from_variables(variables: Mapping[str, str]) -> list[RawSetting]:
    """`{"num_workers": "4"}`, as environ.config_variables gives it. Empty means not set."""
    return [
        RawSetting(key=key, raw=_listed(key, text), where=PREFIX + key.upper())
        for key, text in variables.items()
        if text.strip()
    ]


def from_set_flags(texts: Iterable[str]) -> FileContent:
    """`--set steps=50`, `--set task_options.hidden=64`, `--set train.epochs=5`."""
    entries: list[RawSetting] = []
    problems: list[Problem] = []
    for text in texts:
        name, equals, value = text.partition("=")
        key, dot, option = name.strip().partition(".")
        key = key.replace("-", "_")
        if not equals or not key:
            hint = "write --set key=value, such as --set steps=50"
            problems.append(Problem(f"--set got {text!r}, which is not key=value", hint, "--set"))
            continue
        raw: Raw = {option: value} if dot else _listed(key, value)
        entries.append(RawSetting(key=key, raw=raw, where=f"--set {name.strip()}"))
    return flatten_sections(FileContent(entries=tuple(entries), problems=tuple(problems)))


def _listed(key: str, text: str) -> Raw:
    """One line of text holds several rules when they are separated by `;`."""
    if key in KEYS and KEYS[key].kind in (Kind.STRAGGLERS, Kind.BYZANTINE, Kind.EXPORTS):
        return [part.strip() for part in text.split(";") if part.strip()]
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    config: TrainConfig
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layer:
    """All that one source wrote, by key, and the folder its relative paths start from."""

    entries: Mapping[str, Sequence[RawSetting]]
    folder: Path


@dataclass(slots=True)
class _Reading:
    """The values found so far. Any: each key has its own type, declared by TrainConfig's fields."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def load(
    *, flags: Iterable[RawSetting] = (), variables: Mapping[str, str] | None = None, file: Path | None = None
) -> LoadedConfig:
    """`flags` are in the order of the command line; `variables` is environ.config_variables()."""
    reading = _Reading()
    layers = [_layer(flags, Path(), reading), _layer(from_variables(variables or {}), Path(), reading)]
    if file is not None:
        content = read_file(file)
        reading.problems += with_code(content.problems, Mistake.FILE)
        layers.append(_layer(content.entries, file.parent, reading))
    for key in KEYS.values():
        saying = [layer for layer in layers if key.name in layer.entries]
        if saying:
            _read_key(key, saying, reading)
    config = TrainConfig(**reading.values, origins=reading.origins)
    return LoadedConfig(config=config, problems=tuple(with_code(reading.problems, Mistake.VALUE)))


def _layer(entries: Iterable[RawSetting], folder: Path, reading: _Reading) -> _Layer:
    by_key: dict[str, list[RawSetting]] = {}
    for entry in entries:
        if entry.key not in KEYS:
            hint = did_you_mean(entry.key, KEYS, otherwise="see all: paceline config keys")
            reading.problems.append(
                Problem(f"there is no key {show_value(entry.key)}", hint, entry.where, Mistake.UNKNOWN_KEY)
            )
            continue
        by_key.setdefault(entry.key, []).append(entry)
    for key, said in by_key.items():
        if len(said) > 1 and not KEYS[key].is_repeatable:
            places = " and ".join(entry.where for entry in said)
            hint = f"keep one of them, such as {KEYS[key].flag} {KEYS[key].example}"
            reading.problems.append(
                Problem(f"{key} is set twice, by {places}", hint, said[-1].where, Mistake.TWICE)
            )
    return _Layer(by_key, folder)


def _read_key(key: Key, saying: Sequence[_Layer], reading: _Reading) -> None:
    """`saying` starts with the source that wins."""
    winner = saying[0]
    entry = winner.entries[key.name][-1]
    reading.origins[key.name] = entry.where
    if key.kind in _RULE_READERS:
        _read_rules(key, winner, reading)
    elif key.kind is Kind.OPTIONS:
        _read_options(key, saying, reading)
    else:
        try:
            reading.values[key.name] = read(key, entry.raw)
        except Unreadable as error:
            message = f"{key.name} is {show_value(entry.raw)}, but {error.why}"
            hint = f"set {key.name} to {key.example}, for example"
            reading.problems.append(Problem(message, hint, entry.where))


_RULE_READERS: dict[Kind, Callable[..., tuple[StragglerRule | ByzantineRule | ExportTarget, ...]]] = {
    Kind.STRAGGLERS: read_straggler,
    Kind.BYZANTINE: read_byzantine,
    Kind.EXPORTS: read_export,
}


def _read_rules(key: Key, layer: _Layer, reading: _Reading) -> None:
    read_rule = _RULE_READERS[key.kind]
    rules: list[StragglerRule | ByzantineRule | ExportTarget] = []
    for entry in layer.entries[key.name]:
        items: list[Raw] = entry.raw if isinstance(entry.raw, list) else [entry.raw]
        for number, item in enumerate(items):
            where = entry.parts.get(f"[{number}]", entry.where)
            try:
                rules_read = read_rule(item, where=where, folder=layer.folder)
            except ConfigError as error:
                reading.problems += error.problems
                continue
            for place in range(len(rules), len(rules) + len(rules_read)):
                reading.origins[f"{key.name}[{place}]"] = where
            rules += rules_read
    reading.values[key.name] = tuple(rules)


def _read_options(key: Key, saying: Sequence[_Layer], reading: _Reading) -> None:
    """Options merge by name: a flag for one option leaves the file's other options alone."""
    options: dict[str, Option] = {}
    for layer in reversed(saying):
        for entry in layer.entries[key.name]:
            try:
                written = options_in(entry.raw)
            except Unreadable as error:
                message = f"{key.name} is {show_value(entry.raw)}, but {error.why}"
                hint = f"write {key.example}"
                reading.problems.append(Problem(message, hint, entry.where))
                continue
            for name, raw in written.items():
                where = entry.parts.get(f".{name}", entry.where)
                reading.origins[f"{key.name}.{name}"] = where
                try:
                    options[name] = read_option(raw)
                except Unreadable as error:
                    message = f"{key.name}.{name} is {show_value(raw)}, but {error.why}"
                    reading.problems.append(Problem(message, f"write {key.example}", where))
    reading.values[key.name] = options


# Only settings that were given are written. The run's folder is left out: the next run sets its own.

_NOT_WRITTEN = ("run_dir",)


def config_to_yaml(config: TrainConfig) -> str:
    """ConfigError for the one setting that no file can hold: values read from a recorded trace."""
    import yaml

    values = {
        key.name: _plain(config, key.name, key.kind)
        for key in KEYS.values()
        if key.name not in _NOT_WRITTEN and getattr(config, key.name) not in (None, (), {})
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)


def _plain(config: TrainConfig, name: str, kind: Kind) -> object:
    value = getattr(config, name)
    match kind:
        case Kind.STRAGGLERS:
            if any(rule.steps is not None for rule in value):
                message = "straggler names a recorded trace, which cannot be written into a config file"
                raise ConfigError(
                    [
                        Problem(
                            message, "write straggler rules, such as worker=0,factor=3", config.origin(name)
                        )
                    ]
                )
            return [straggler_text(rule) for rule in value]
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
