"""What did the user say, all sources taken together? flag > variable > file.

Every problem is collected, none raised: `plan.resolve` adds its own and
reports all of them at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.config.byzantine import read_byzantine
from paceline.config.export_target import ExportTarget
from paceline.config.exports import read_export
from paceline.config.file import read_file
from paceline.config.key import Key, Kind
from paceline.config.keys import KEYS
from paceline.config.nearest import did_you_mean
from paceline.config.sources import from_variables
from paceline.config.stragglers import read_straggler
from paceline.config.train_config import Option, TrainConfig
from paceline.config.values import Raw, Unreadable, options_in, read, read_option, shown
from paceline.config.written import Written
from paceline.errors import ConfigError, Mistake, Problem, coded
from paceline.sync.byzantine import ByzantineRule
from paceline.sync.stragglers import StragglerRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    config: TrainConfig
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layer:
    """All that one source wrote, by key, and the folder its relative paths start from."""

    entries: Mapping[str, Sequence[Written]]
    folder: Path


@dataclass(slots=True)
class _Reading:
    """The values found so far. Any: each key has its own type, and TrainConfig's fields say which."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def load(
    *, flags: Iterable[Written] = (), variables: Mapping[str, str] | None = None, file: Path | None = None
) -> Loaded:
    """`flags` are in the order of the command line; `variables` is environ.config_variables()."""
    reading = _Reading()
    layers = [_layer(flags, Path(), reading), _layer(from_variables(variables or {}), Path(), reading)]
    if file is not None:
        content = read_file(file)
        reading.problems += coded(content.problems, Mistake.FILE)
        layers.append(_layer(content.entries, file.parent, reading))
    for key in KEYS.values():
        saying = [layer for layer in layers if key.name in layer.entries]
        if saying:
            _read_key(key, saying, reading)
    config = TrainConfig(**reading.values, origins=reading.origins)
    return Loaded(config=config, problems=tuple(coded(reading.problems, Mistake.VALUE)))


def _layer(entries: Iterable[Written], folder: Path, reading: _Reading) -> _Layer:
    by_key: dict[str, list[Written]] = {}
    for entry in entries:
        if entry.key not in KEYS:
            hint = did_you_mean(entry.key, KEYS, otherwise="see all: paceline config keys")
            reading.problems.append(
                Problem(f"there is no key {shown(entry.key)}", hint, entry.where, Mistake.UNKNOWN_KEY)
            )
            continue
        by_key.setdefault(entry.key, []).append(entry)
    for key, said in by_key.items():
        if len(said) > 1 and not KEYS[key].is_repeatable:
            places = " and ".join(entry.where for entry in said)
            hint = f"keep one of them, such as {KEYS[key].flag} {KEYS[key].example}"
            reading.problems.append(
                Problem(f"{key} is said twice, by {places}", hint, said[-1].where, Mistake.TWICE)
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
            what = f"{key.name} is {shown(entry.raw)}, but {error.why}"
            hint = f"set {key.name} to {key.example}, for example"
            reading.problems.append(Problem(what, hint, entry.where))


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
                found = read_rule(item, where=where, folder=layer.folder)
            except ConfigError as error:
                reading.problems += error.problems
                continue
            for place in range(len(rules), len(rules) + len(found)):
                reading.origins[f"{key.name}[{place}]"] = where
            rules += found
    reading.values[key.name] = tuple(rules)


def _read_options(key: Key, saying: Sequence[_Layer], reading: _Reading) -> None:
    """Options merge by name: a flag for one option leaves the file's other options alone."""
    options: dict[str, Option] = {}
    for layer in reversed(saying):
        for entry in layer.entries[key.name]:
            try:
                written = options_in(entry.raw)
            except Unreadable as error:
                what, hint = f"{key.name} is {shown(entry.raw)}, but {error.why}", f"write {key.example}"
                reading.problems.append(Problem(what, hint, entry.where))
                continue
            for name, raw in written.items():
                where = entry.parts.get(f".{name}", entry.where)
                reading.origins[f"{key.name}.{name}"] = where
                try:
                    options[name] = read_option(raw)
                except Unreadable as error:
                    what = f"{key.name}.{name} is {shown(raw)}, but {error.why}"
                    reading.problems.append(Problem(what, f"write {key.example}", where))
    reading.values[key.name] = options
